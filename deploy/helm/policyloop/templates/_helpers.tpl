{{/* Names, labels, and what every pod of this chart has in common. */}}
{{- define "policyloop.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "policyloop.labels" -}}
app.kubernetes.io/name: policyloop
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end }}

{{- define "policyloop.selector" -}}
app.kubernetes.io/name: policyloop
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "policyloop.image" -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag }}{{ end }}
{{- end }}

{{- define "policyloop.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "policyloop.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Secrets come as environment or files by reference, never as values. */}}
{{- define "policyloop.env" -}}
env:
  - {name: HOME, value: /tmp}
  - {name: POLICYLOOP_STORE, value: {{ .Values.store.uri | quote }}}
{{- with .Values.store.secretName }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "policyloop.mounts" -}}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.store.volume.enabled }}
  - {name: store, mountPath: /store}
  {{- end }}
  {{- if .Values.keysSecretName }}
  - {name: keys, mountPath: /etc/policyloop/keys, readOnly: true}
  {{- end }}
{{- end }}

{{- define "policyloop.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if .Values.store.volume.enabled }}
- {name: store, persistentVolumeClaim: {claimName: {{ include "policyloop.name" . }}-store}}
{{- end }}
{{- with .Values.keysSecretName }}
- {name: keys, secret: {secretName: {{ . }}, defaultMode: 0440}}
{{- end }}
{{- end }}

{{- define "policyloop.probes" -}}
startupProbe: {httpGet: {path: /health/startup, port: http}, periodSeconds: 5, failureThreshold: 120}
livenessProbe: {httpGet: {path: /health/live, port: http}, periodSeconds: 10, failureThreshold: 3}
readinessProbe: {httpGet: {path: /health/ready, port: http}, periodSeconds: 5, failureThreshold: 2}
{{- end }}
