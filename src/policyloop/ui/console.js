// The console. A page is a function from (parts of the address, its query) to elements; everything shown is fetched from ui/api.

import { colour, lines, river, scatter, short, svg } from "./charts.js";
import { WORDS } from "./words.js";

const $ = (id) => document.getElementById(id);
const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* a browser that keeps nothing */ } };
let lang = kept("lang") || ((navigator.language || "").startsWith("zh") ? "zh" : "en");
let token = (() => { try { return sessionStorage.getItem("key") || ""; } catch { return ""; } })();
let me = { keys: false, scopes: [] };

const t = (key, ...given) => given.reduce((text, g) => text.replace("{}", g), WORDS[lang][key] ?? key);
const percent = (x) => x === null || x === undefined ? "–" : `${(100 * x).toFixed(x > 0 && x < 0.1 ? 1 : 0)}\u00a0%`;
const when = (at) => at ? new Date(typeof at === "number" ? at * 1000 : at).toLocaleString("sv-SE") : "–";
const span = (s) => s >= 5400 ? `${(s / 3600).toFixed(1)} h` : s >= 90 ? `${Math.round(s / 60)} min` : `${Math.round(s)} s`;
const bytes = (n) => n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e3).toFixed(1)} kB`;
const e = encodeURIComponent;

function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith("on")) made.addEventListener(k.slice(2), v);
    else if (v === true) made.setAttribute(k, "");
    else if (v !== null && v !== undefined && v !== false) made.setAttribute(k, v);
  }
  made.append(...children.flat(3).filter((c) => c !== null && c !== undefined && c !== false));
  return made;
}
const link = (href, ...children) => h("a", { href }, ...children);
const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);
const card = (title, ...children) => h("section", { class: "card" }, title ? h("h2", {}, title) : null, ...children);

// columns: [[heading, row => cell, numeric?]]
function table(caption, columns, rows, attributes = () => ({})) {
  return h("div", { class: "wide" }, h("table", {}, caption ? h("caption", {}, caption) : null,
    h("thead", {}, h("tr", {}, columns.map(([name, , numeric]) => h("th", { scope: "col", class: numeric ? "num" : null }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", attributes(row), columns.map(([, cell, numeric]) => h("td", { class: numeric ? "num" : null }, cell(row))))))));
}

async function ask(path, body = null) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body) headers["content-type"] = "application/json";
  const reply = await fetch(`ui/api/${path}`, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  const found = await reply.json();
  if (!reply.ok) throw new Error(found.error?.message ?? String(reply.status));
  return found;
}

// --- start ------------------------------------------------------------------------------------------------------------------

async function start() {
  const found = await ask("start");
  const active = found.runs.filter((r) => r.training);
  const shown = active.length ? active : found.runs.slice(0, 3);
  return ["start", h("div", { class: "cards" },
    card(t("serves"), found.models.some((m) => m.stable !== null) ? found.models.filter((m) => m.stable !== null).map((m) => h("div", {},
      h("p", {}, link(`#/models/${e(m.name)}`, h("span", { class: "big" }, `${m.name}@${m.stable}`)), " ", stateTag(m)), shareBar(m.shares),
      m.last ? h("p", { class: "dim small" }, `${m.last.type} · ${m.last.by} · ${when(m.last.at)} · ${m.last.reason}`) : null)) : h("p", { class: "dim" }, t("nothing_serves"))),
    card(t("trains"), shown.length ? shown.map((r) => h("div", {},
      h("p", {}, link(`#/runs/${e(r.run)}`, h("span", { class: "big" }, r.run)), " ", tag(t(r.training ? "running" : "done"), r.training ? "good" : "")),
      h("p", { class: "small" }, `${t("step")} ${r.steps}${r.of ? ` / ${r.of}` : ""} · ${r.type ?? ""} · ${t("reward")} ${short(r.reward)} · ${t("best")} ${bestText(r)}`))) : h("p", { class: "dim" }, t("nothing_trains")),
      found.runs.length ? h("p", {}, link("#/runs", t("all_runs"))) : null),
    card(t("waits"), found.waits.length ? h("ul", { class: "plain" }, found.waits.map((w) => h("li", {}, tag("!", "warn"), " ", link(w.link, `${t(`wait:${w.kind}`)}: ${w.what}`)))) : h("p", { class: "dim" }, t("nothing_waits"))))];
}

const stateTag = (m) => tag(m.state, m.state === "idle" ? "good" : "warn");
const bestText = (r) => r.best ? `${percent(r.best.accuracy)}${r.best.low === null ? "" : ` [${percent(r.best.low)}, ${percent(r.best.high)}]`}` : "–";

function shareBar(shares) {
  const rows = Object.entries(shares);
  if (!rows.length) return null;
  return h("div", { class: "bar", role: "img", "aria-label": `${t("traffic")}: ${rows.map(([v, s]) => `@${v} ${percent(s)}`).join(", ")}` },
    rows.map(([v, s]) => h("span", { title: `@${v} ${percent(s)}`, style: `width: ${100 * s}%; background: ${colour(Number(v))}` }, s < 0.15 ? "" : `@${v} ${percent(s)}`)));
}

// --- runs -------------------------------------------------------------------------------------------------------------------

async function runs(parts, query) {
  const found = (await ask("runs")).runs, chosen = (query.get("show") || "").split(",").filter(Boolean).map(decodeURIComponent);
  if (!found.length) return ["runs", h("p", { class: "dim" }, t("empty_runs"))];
  const toggle = (name) => {
    const now = chosen.includes(name) ? chosen.filter((c) => c !== name) : [...chosen, name];
    location.hash = now.length ? `#/runs?show=${now.map(e).join(",")}` : "#/runs";
  };
  const rows = table(t("pick"), [
    ["", (r) => h("input", { type: "checkbox", checked: chosen.includes(r.run), "aria-label": `${t("overlay")}: ${r.run}`, onchange: () => toggle(r.run) })],
    [t("run"), (r) => [chosen.includes(r.run) ? h("i", { class: "swatch", style: `color: ${colour(chosen.indexOf(r.run))}` }, "■ ") : null, link(`#/runs/${e(r.run)}`, r.run)]],
    [t("state"), (r) => r.training ? tag(t("running"), "good") : h("span", { class: "dim" }, t("done"))],
    [t("type"), (r) => r.type ?? "–"], [t("task"), (r) => r.task ?? "–"],
    [t("steps"), (r) => `${r.steps}${r.of ? ` / ${r.of}` : ""}`, true],
    [t("reward"), (r) => short(r.reward), true], [t("length"), (r) => short(r.length), true],
    [t("before"), (r) => r.start ? percent(r.start.accuracy) : "–", true], [t("best"), bestText, true],
    [t("guards"), (r) => r.guards || "–", true], [t("hours"), (r) => span(r.seconds), true],
  ], found);
  if (!chosen.length) return ["runs", rows];
  const whole = await Promise.all(chosen.map((name) => ask(`runs/${e(name)}`)));
  const curve = (key) => whole.map((r, i) => ({ name: r.run, colour: colour(i), points: r.curves[key] || [] }));
  const legend = h("p", { class: "legend" }, whole.map((r, i) => h("span", {}, h("i", { style: `background: ${colour(i)}` }), r.run)));
  return ["runs", rows, h("h2", {}, t("overlay")), legend, charts(
    [t("held_out"), whole.map((r, i) => ({ name: r.run, colour: colour(i), points: held(r) })), bases(whole[0])],
    [t("reward"), curve("reward/mean")], [t("length"), curve("length/mean")], [t("signal_share"), curve("groups/signal_frac")])];
}

const held = (r) => r.held_out.map((p) => [p.step, p.accuracy, p.low, p.high]);
const bases = (r) => r.baselines.map((b) => ({ name: t("untouched", b.limit), y: b.accuracy }));
const charts = (...all) => h("div", { class: "cards charts" }, all.map(([title, series, dashed = []]) => {
  const drawn = lines(title, series, dashed);
  return drawn ? card(null, h("h3", {}, title), drawn) : null;
}));

async function run([name]) {
  const r = await ask(`runs/${e(name)}`), map = await ask(`runs/${e(name)}/map`);
  const one = (key) => [{ name: key, colour: colour(0), points: r.curves[key] || [] }];
  const pieces = Object.keys(r.curves).filter((k) => k.startsWith("reward/part/"));
  const after = r.held_out.filter((p) => p.step > 0 && p.length !== null), begin = r.held_out.find((p) => p.step === 0);
  const picture = scatter(t("acc_len"), after.map((p) => ({ x: p.length, y: p.accuracy, low: p.low, high: p.high, name: String(p.step) })),
    begin && { x: begin.length, y: begin.accuracy, low: begin.low, high: begin.high }, { ship: t("ship"), start: t("begin") });
  return [name, h("p", { class: "row" }, tag(t(r.training ? "running" : "done"), r.training ? "good" : ""), `${r.type ?? ""} · ${r.task ?? ""} · ${r.model ?? ""} · ${t("step")} ${r.steps}${r.of ? ` / ${r.of}` : ""} · ${t("best")} ${bestText(r)}`),
    charts([t("held_out"), [{ name, colour: colour(0), points: held(r) }], bases(r)], [t("reward"), one("reward/mean")], [t("length"), one("length/mean")],
      [t("signal_share"), one("groups/signal_frac")], [t("entropy"), one("entropy")], [t("grad_norm"), one("grad_norm")], [t("truncated"), one("length/truncated_frac")],
      ...(pieces.length > 1 ? [[t("parts"), pieces.map((k, i) => ({ name: k.slice(12), colour: colour(i), points: r.curves[k] }))]] : [])),
    h("p", { class: "dim small" }, t("held_note"), pieces.length > 1 ? h("span", { class: "legend" }, pieces.map((k, i) => h("span", {}, h("i", { style: `background: ${colour(i)}` }), k.slice(12)))) : null),
    picture ? [h("h2", {}, t("acc_len")), h("div", { class: "card narrow" }, picture)] : null,
    h("h2", {}, t("sampled")), r.sampled.length ? h("p", {}, r.sampled.slice().reverse().slice(0, 120).map((s) => [link(`#/runs/${e(name)}/steps/${s}`, s), " "])) : h("p", { class: "dim" }, t("none")),
    h("h2", {}, t("map")), passMap(name, map),
    r.events.length ? [h("h2", {}, t("events")), table(null, [[t("step"), (v) => v.step, true], [t("what"), (v) => v.kind], ["", (v) => v.sentence ?? (v["eval/accuracy"] !== undefined ? percent(v["eval/accuracy"]) : v.checkpoint ?? "")]], r.events.slice().reverse().slice(0, 60))] : null,
    h("details", {}, h("summary", {}, t("config")), h("pre", {}, r.config))];
}

function passMap(name, map) {
  if (!map.prompts.length) return h("p", { class: "dim" }, t("no_map"));
  const at = new Map(map.steps.map((s, i) => [s, i]));
  const grid = h("div", { class: "map", style: `grid-template-columns: repeat(${map.steps.length}, minmax(14px, 34px))`, role: "group", "aria-label": t("map") },
    map.prompts.map((row, y) => row.cells.map(([s, share, n]) => h("a", { href: `#/runs/${e(name)}/steps/${s}/${n}`, title: `${t("step")} ${s}: ${percent(share)} · ${row.prompt}`, "aria-label": `${t("step")} ${s}, ${percent(share)}`,
      style: `grid-row: ${y + 2}; grid-column: ${at.get(s) + 1}; background: color-mix(in srgb, var(--c2) ${Math.round(12 + 88 * share)}%, var(--soft))` }))),
    map.steps.map((s, i) => i % Math.ceil(map.steps.length / 20) ? null : h("span", { class: "dim small", style: `grid-row: 1; grid-column: ${i + 1}` }, s)));
  return card(null, h("p", { class: "dim small" }, t("map_note"), map.more ? ` ${t("left_out", map.more)}` : ""), grid);
}

async function step([name, , number]) {
  const found = await ask(`runs/${e(name)}/steps/${number}`), i = found.sampled.indexOf(found.step);
  const to = (s, word) => s === undefined ? null : link(`#/runs/${e(name)}/steps/${s}`, `${word} (${s})`);
  return [`${name} · ${t("step")} ${number}`, h("p", { class: "row" }, link(`#/runs/${e(name)}`, name), to(found.sampled[i - 1], `← ${t("older")}`), to(found.sampled[i + 1], `${t("newer")} →`)),
    table(t("groups"), [[t("prompt"), (g) => link(`#/runs/${e(name)}/steps/${number}/${g.n}`, g.prompt)], [t("signal"), (g) => short(g.signal), true], [t("reward"), (g) => short(g.reward), true],
      [t("right"), (g) => percent(g.right), true], [t("kept"), (g) => `${g.kept} / ${g.size}`, true], [t("length"), (g) => short(g.length), true]], found.groups)];
}

async function group([name, , number, n]) {
  const g = await ask(`runs/${e(name)}/steps/${number}/groups/${n}`), explained = g.answers.some((a) => a.change !== null);
  return [`${t("group")} ${g.prompt_id}`, h("p", { class: "row" }, link(`#/runs/${e(name)}`, name), link(`#/runs/${e(name)}/steps/${number}`, `${t("step")} ${number}`), g.n > 0 ? link(`#/runs/${e(name)}/steps/${number}/${g.n - 1}`, "←") : null, `${g.n + 1} / ${g.of}`, g.n + 1 < g.of ? link(`#/runs/${e(name)}/steps/${number}/${g.n + 1}`, "→") : null),
    h("pre", { class: "prompt" }, typeof g.prompt === "string" ? g.prompt : JSON.stringify(g.prompt, null, 1)), h("p", {}, h("strong", {}, `${t("target")}: `), String(g.target ?? "–")),
    h("h2", {}, t("answers")), h("p", { class: "dim small" }, t(explained ? "colour_note" : "no_change")),
    h("div", { class: "card" }, g.answers.map((a, i) => answer(a, i)))];
}

function answer(a, i) {
  const parts = Object.entries(a.parts).filter(([, v]) => v !== null).map(([k, v]) => h("span", { class: v < 0 ? "bad" : v > 0 ? "good" : "dim" }, `${k} ${v > 0 ? "+" : ""}${short(v)}`));
  const wide = Math.min(100, Math.abs(a.advantage ?? 0) * 50);
  const arrow = svg("svg", { viewBox: "0 0 200 12", style: "width: 110px; display: inline-block", "aria-hidden": "true" }, svg("line", { class: "axis", x1: 100, x2: 100, y1: 0, y2: 12 }),
    svg("rect", { x: (a.advantage ?? 0) < 0 ? 100 - wide : 100, y: 2, width: wide, height: 8, fill: `rgb(var(--${(a.advantage ?? 0) < 0 ? "down" : "up"}))` }));
  return h("article", { class: `answer${a.keep ? "" : " dropped"}`, "aria-label": `${i + 1}` },
    h("div", { class: "row small" }, h("strong", {}, `${i + 1}`), h("span", {}, `${t("reward")} `, h("strong", {}, a.reward === null ? t("unscored") : short(a.reward))), parts,
      a.metric === null || a.metric === undefined ? null : tag(`${t("right")}: ${t(a.metric > 0 ? "yes" : "no")}`, a.metric > 0 ? "good" : "bad"), h("span", {}, `${t("advantage")} ${short(a.advantage)} `, a.advantage ? arrow : null),
      h("span", { class: "dim" }, `${a.length} ${t("tokens")} · ${a.finish_reason} · ${a.version ?? ""}`), a.change === null ? null : h("span", { class: "dim" }, `${t("change")} ${a.change > 0 ? "+" : ""}${short(a.change)}`), a.keep ? null : tag(t("dropped"), "warn")),
    h("div", { class: "tokens" }, a.tokens.length ? a.tokens.map(([text, d]) => h("span", { class: "token", title: d === null ? null : `${d > 0 ? "+" : ""}${d.toFixed(3)}`,
      style: d === null || Math.abs(d) < 0.02 ? null : `background: rgba(var(--${d > 0 ? "up" : "down"}), ${Math.min(0.75, 0.12 + Math.abs(d)).toFixed(2)})` }, text)) : a.text));
}

// --- models -----------------------------------------------------------------------------------------------------------------

async function models() {
  const found = (await ask("models")).models;
  if (!found.length) return ["models", h("p", { class: "dim" }, t("nothing_serves"))];
  return ["models", table(null, [[t("name"), (m) => link(`#/models/${e(m.name)}`, m.name)], [t("state"), stateTag], [t("stable"), (m) => m.stable === null ? "–" : `@${m.stable}`], [t("candidate"), (m) => m.candidate === null ? "–" : `@${m.candidate}`],
    [t("previous"), (m) => m.previous === null ? "–" : `@${m.previous}`], [t("versions"), (m) => m.versions, true], [t("traffic"), (m) => shareBar(m.shares)], [t("changed"), (m) => when(m.at)]], found)];
}

async function model([name]) {
  const m = await ask(`models/${e(name)}`), may = me.scopes.includes("promote") || me.scopes.includes("admin");
  const trial = ["staged", "warming", "shadow", "canary"].includes(m.state), back = trial ? m.stable : m.previous;
  const names = [...new Set(m.river.flatMap((v) => Object.keys(v.shares)))].sort((a, b) => a - b);
  const buttons = h("p", { class: "row" },
    h("button", { type: "button", class: "go", id: "promote", disabled: !may || m.candidate === null, onclick: () => move(m, "promote", m.candidate) }, m.candidate === null ? t("promote") : `${t("promote")} @${m.candidate}`),
    h("button", { type: "button", class: "back", id: "rollback", disabled: !may || back === null, onclick: () => move(m, "rollback", null) }, back === null ? t("rollback") : `${t("rollback")}: ${t("back_to", `@${back}`)}`),
    may ? null : h("span", { class: "dim small" }, t("needs_key")));
  return [name, h("div", { class: "cards" },
    card(t("state"), h("p", {}, h("span", { class: "big", id: "stable" }, m.stable === null ? "–" : `@${m.stable}`), " ", stateTag(m), " ", m.quarantined.map((v) => [tag(`@${v} ${t("quarantined")}`, "bad"), " "]), m.live?.frozen ? tag(t("frozen"), "bad") : null),
      shareBar(m.shares), h("p", { class: "small dim" }, [`${t("candidate")} ${m.candidate === null ? "–" : `@${m.candidate}`}`, `${t("previous")} ${m.previous === null ? "–" : `@${m.previous}`}`, m.failures ? `${m.failures} ${t("failures")}` : null, m.deadline ? `${t("deadline")} ${when(m.deadline)}` : null].filter(Boolean).join(" · ")), buttons, wayBack(m.live)),
    card(t("evidence"), evidence(m))),
    m.live ? [h("h2", {}, t("backends")), table(null, [[t("name"), (b) => b.name], [t("version"), (b) => b.version === null ? "–" : `@${b.version}`], [t("state"), (b) => b.up ? tag("up", "good") : tag(b.why || "down", "bad")], ["", (b) => b.circuit]], m.live.backends)] : null,
    m.river.length ? [h("h2", {}, t("river")), card(null, h("p", { class: "dim small" }, t("river_note")), river(t("river"), m.river, names), under(m))] : null,
    h("h2", {}, t("versions")), table(null, [
      [t("version"), (v) => [h("strong", {}, `@${v.number}`), " ", Object.entries(m.aliases).filter(([, n]) => n === v.number).map(([a]) => [tag(t(a), a === "stable" ? "good" : ""), " "]), m.quarantined.includes(v.number) ? tag(t("quarantined"), "bad") : null]],
      [t("kind"), (v) => `${v.kind}, ${bytes(v.size)}`], [t("lineage"), (v) => lineage(v.lineage)], [t("evaluation"), (v) => evaluation(v.evaluation)],
      [t("reports"), (v) => [...v.reports.map((r) => [link(`#/models/${e(name)}/report/${r.digest}`, r.type), " "]), ...Object.entries(v.checks).map(([k, c]) => [tag(k, c.passed ? "good" : "bad"), " "])]],
      [t("created"), (v) => `${when(v.created.at)} · ${v.created.by ?? ""}`],
      ["", (v) => v.number === m.stable ? null : h("button", { type: "button", disabled: !may, onclick: () => move(m, "promote", v.number) }, t("promote"))]], m.versions),
    h("h2", {}, t("audit"), " ", m.chain.length ? tag(t("chain_bad"), "bad") : tag(t("chain_ok"), "good")), m.chain.map((line) => h("p", { class: "bad" }, line)),
    table(m.left_out ? t("left_out", m.left_out) : null, [["n", (v) => v.n, true], [t("when"), (v) => when(v.at)], [t("who"), (v) => v.by], [t("what"), (v) => v.type], [t("version"), (v) => v.version === null ? "–" : `@${v.version}`],
      [t("reason"), (v) => v.reason], [t("report"), (v) => v.report ? link(`#/models/${e(name)}/report/${v.report}`, v.report.slice(0, 10)) : "–"]], m.events)];
}

const wayBack = (live) => live?.way_back?.to == null ? null : h("p", { class: "small" }, `${t("way_back")}: @${live.way_back.to} `, Object.entries(live.way_back).filter(([k, v]) => k !== "to" && v !== null).map(([k, v]) => tag(`${k}: ${typeof v === "number" ? short(v) : v}`)));

function evidence(m) {
  const last = m.river.slice().reverse().find((v) => v.evidence.length), signals = m.live?.verdict?.signals ?? last?.evidence ?? [];
  if (!signals.length) return h("p", { class: "dim" }, t("no_evidence"));
  const gauge = (seen, bound, kind, bad) => h("span", { class: "row" }, h("meter", { min: 0, max: 1, ...(bad ? { low: 0.5, high: 0.8, optimum: 0 } : {}), value: seen > 0 ? Math.min(1, Math.max(0, Math.log(seen) / Math.log(bound))) : 0, "aria-label": kind }), h("span", { class: "small" }, `${short(seen)} / ${short(bound)}`));
  return [h("p", { class: "dim small" }, t("evidence_note")), table(null, [[t("signal"), (s) => s.signal], [t("outcome"), (s) => tag(s.outcome, { pass: "good", fail: "bad" }[s.outcome] ?? "")],
    [t("worse"), (s) => gauge(s.worse, s.worse_bound, t("worse"), true)], [t("not_worse"), (s) => gauge(s.not_worse, s.not_worse_bound, t("not_worse"))]], signals)];
}

function under(m) {  // evidence under the river: log evidence over log bound at each event that was decided on it
  const names = [...new Set(m.river.flatMap((v) => v.evidence.map((s) => s.signal)))];
  const points = (signal) => m.river.flatMap((v, i) => v.evidence.filter((s) => s.signal === signal && s.worse > 0).map((s) => [i + 0.5, Math.log(s.worse) / Math.log(s.worse_bound)]));
  const drawn = names.length ? lines(t("evidence"), names.map((s, i) => ({ name: s, colour: colour(i), points: points(s) })), [{ name: t("worse"), y: 1 }], { width: 900, height: 110, xs: [0, m.river.length], bare: true }) : null;
  return drawn ? [drawn, h("p", { class: "legend" }, names.map((s, i) => h("span", {}, h("i", { style: `background: ${colour(i)}` }), s)))] : null;
}

const lineage = (tree) => h("ul", { class: "plain small" }, Object.entries(tree).filter(([k, v]) => v !== null && k !== "config").map(([k, v]) => h("li", {}, h("span", { class: "dim" }, `${k} `), typeof v === "object" ? JSON.stringify(v).slice(0, 80) : String(v).slice(0, 80))));
const evaluation = (tree) => h("ul", { class: "plain small" }, Object.entries(tree).map(([suite, v]) => h("li", {}, h("span", { class: "dim" }, `${suite} `), v && typeof v.value === "number" ? `${v.metric ?? ""} ${short(v.value)}${v.interval ? ` [${v.interval.map?.(short).join(", ") ?? ""}]` : ""}` : JSON.stringify(v).slice(0, 80))));

async function report([name, , digest]) {
  const found = await ask(`models/${e(name)}/reports/${digest}`), told = found.verdict ?? found.outcome;
  return [`${t("report")} ${digest.slice(0, 10)}`, h("p", { class: "row" }, link(`#/models/${e(name)}`, name), told ? tag(told, { SHIP: "good", HOLD: "bad", pass: "good", fail: "bad" }[told] ?? "warn") : null),
    Array.isArray(found.reasons) ? h("ul", {}, found.reasons.map((r) => h("li", {}, String(r)))) : null, h("pre", { class: "card" }, JSON.stringify(found, null, 2))];
}

function move(m, what, version) {
  const target = version ?? (["staged", "warming", "shadow", "canary"].includes(m.state) ? m.stable : m.previous), reason = h("input", { type: "text", id: "reason", required: true, maxlength: 1000 }), force = h("input", { type: "checkbox", id: "force" });
  dialog(`${t(what)}: ${m.name}@${target}`, [h("label", {}, t("reason"), reason), what === "promote" ? h("label", {}, force, " ", t("force")) : null], t("confirm"), async () => {
    await ask(`models/${e(m.name)}/${what}`, { n: m.n, reason: reason.value, ...(what === "promote" ? { version, force: force.checked } : {}) });
  }, what === "promote" ? "go" : "back");
}

// --- feedback and trace -----------------------------------------------------------------------------------------------------

async function feedback() {
  const f = await ask("feedback"), two = (a, b) => [[a, (r) => r[0] || "–"], [b, (r) => r[1], true]];
  if (!f.records && !f.feedback) return ["feedback", h("p", { class: "dim" }, t("no_feedback"))];
  return ["feedback", h("p", {}, h("span", { class: "big" }, f.records.toLocaleString()), ` ${t("records")} · `, h("span", { class: "big" }, f.feedback.toLocaleString()), ` ${t("votes")}`),
    h("div", { class: "cards" }, card(t("by_kind"), table(null, two(t("kind"), t("votes")), f.by_kind)), card(t("by_version"), table(null, two(t("version"), t("request")), f.by_version)), card(t("by_key"), table(null, two(t("key"), t("votes")), f.by_key))),
    h("h2", {}, t("newest")), table(null, [[t("when"), (s) => when(s.at)], [t("request"), (s) => link(`#/trace/${e(s.request_id)}`, s.request_id)], [t("kind"), (s) => s.kind], [t("value"), (s) => String(typeof s.value === "number" ? short(s.value) : s.value).slice(0, 200)], [t("key"), (s) => s.key || "–"]], f.newest),
    f.sets.length ? h("p", {}, `${t("sets")}: ${f.sets.join(", ")}`) : null];
}

async function trace([id]) {
  const field = h("input", { type: "text", id: "request", value: id ?? "", size: 40, "aria-label": t("request") });
  const form = h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); location.hash = `#/trace/${e(field.value.trim())}`; } }, field, h("button", {}, t("find")));
  if (!id) return ["follow", form];
  const f = await ask(`trace/${e(id)}`), r = f.record, asked = Array.isArray(r.prompt) ? r.prompt.map((m) => `${m.role}: ${m.content}`).join("\n") : String(r.prompt);
  return ["follow", form, h("p", { class: "dim" }, `${when(r.at)} · ${r.version || r.model} · ${r.source} · ${r.tokens} ${t("tokens")} · ${r.finish_reason ?? ""} · ${t("key")} ${r.key || "–"}`), h("h2", {}, t("asked")), h("pre", { class: "prompt" }, asked),
    h("h2", {}, t("answered")), h("pre", { class: "prompt" }, r.text), h("h2", {}, t("feedback")), f.feedback.length ? table(null, [[t("when"), (s) => when(s.at)], [t("kind"), (s) => s.kind], [t("value"), (s) => String(s.value)], [t("key"), (s) => s.key || "–"]], f.feedback) : h("p", { class: "dim" }, t("none")),
    h("p", {}, `${t("sets")}: ${f.sets.join(", ") || t("none")} · ${t("learned")}: ${f.versions.join(", ") || t("none")}`)];
}

// --- the frame --------------------------------------------------------------------------------------------------------------

const PAGES = [
  [/^$/, start], [/^runs$/, runs], [/^runs\/([^/]+)$/, run], [/^runs\/([^/]+)\/(steps)\/(\d+)$/, step], [/^runs\/([^/]+)\/(steps)\/(\d+)\/(\d+)$/, group],
  [/^models$/, models], [/^models\/([^/]+)$/, model], [/^models\/([^/]+)\/(report)\/(\w+)$/, report], [/^feedback$/, feedback], [/^trace(?:\/([^/]+))?$/, trace],
];
const NAV = [["", "start"], ["runs", "runs"], ["models", "models"], ["feedback", "feedback"], ["trace", "trace"]];
const TITLES = { start: "start", runs: "runs", models: "models", feedback: "feedback", follow: "follow" };
let drawn = 0;

async function draw() {
  const mine = ++drawn, [address, query = ""] = location.hash.replace(/^#\/?/, "").split("?"), asked = new URLSearchParams(query);
  if (WORDS[asked.get("lang")]) lang = asked.get("lang");
  if (["light", "dark"].includes(asked.get("theme"))) document.documentElement.dataset.theme = asked.get("theme");
  frame(address);
  try {
    const found = PAGES.map(([pattern, page]) => [address.match(pattern), page]).find(([match]) => match);
    if (!found) throw new Error(t("wrong_page"));
    const [title, ...content] = await found[1](found[0].slice(1).map((part) => part === undefined ? part : decodeURIComponent(part)), asked);
    if (mine !== drawn) return;  // the person has gone on
    const named = TITLES[title] ? t(TITLES[title]) : title;
    document.title = `${named} · policyloop`;
    $("main").replaceChildren(h("h1", {}, named), ...content.flat(3).filter(Boolean));
    say("");
  } catch (problem) {
    if (mine === drawn) { say(problem.message); $("main").replaceChildren(); }
  }
  $("main").dataset.drawn = String(mine);
}

function say(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = !problem;
}

function frame(address) {
  document.documentElement.lang = lang === "zh" ? "zh-CN" : "en";
  $("skip").textContent = t("skip");
  $("nav").replaceChildren(...NAV.map(([to, name]) => h("a", { href: `#/${to}`, "aria-current": address.split("/")[0] === to ? "page" : null }, t(name))));
  $("lang").textContent = t("other");
  $("theme").textContent = t("theme");
  $("key").textContent = me.name ? `${t("key")}: ${me.name}` : t("key");
}

function dialog(title, fields, action, act, kind = "") {
  const wrong = h("p", { class: "bad", role: "alert" }), box = $("dialog");
  $("dialog-form").replaceChildren(h("h2", { id: "dialog-title" }, title), ...fields.filter(Boolean), wrong, h("p", { class: "row" }, h("button", { type: "submit", id: "confirm", class: kind }, action), h("button", { type: "button", onclick: () => box.close() }, t("cancel"))));
  $("dialog-form").onsubmit = async (event) => {
    event.preventDefault();
    try { await act(); box.close(); await draw(); } catch (problem) { wrong.textContent = problem.message; }
  };
  box.showModal();
}

async function known() {
  try { me = await ask("me"); } catch (problem) { me = { keys: true, scopes: [] }; if (token) throw problem; }
}

$("lang").addEventListener("click", () => { lang = lang === "en" ? "zh" : "en"; keep("lang", lang); draw(); });
$("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  keep("theme", root.dataset.theme = dark ? "light" : "dark");
});
$("key").addEventListener("click", () => {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", value: token });
  dialog(t("key_title"), [h("label", {}, t("key"), field), h("p", { class: "dim small" }, t("key_note"))], t("confirm"), async () => {
    const before = token;
    token = field.value.trim();
    try { await known(); sessionStorage.setItem("key", token); } catch (problem) { token = before; throw problem; }
  });
});
if (kept("theme")) document.documentElement.dataset.theme = kept("theme");
addEventListener("hashchange", () => { draw().then(() => $("main").focus({ preventScroll: true })); });
known().catch(() => { token = ""; }).then(draw);
setInterval(() => { if (!document.hidden && !$("dialog").open && /^#?\/?(\?.*)?$|^#\/models/.test(location.hash)) draw(); }, 5000);
