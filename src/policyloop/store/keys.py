"""Keys of object storage: from the environment, from a file or folder of secrets, from the AWS profile, or from the machine's own identity.

In this order, the first that gives something: the environment (`AWS_ACCESS_KEY_ID`, ... as obstore reads it) · `POLICYLOOP_STORE_KEYS`, a file
of NAME=value lines or a folder with one file per NAME (a mounted Kubernetes secret) · `AWS_SHARED_CREDENTIALS_FILE` or ~/.aws/credentials
with `AWS_PROFILE` · nothing, and the client asks the machine (IRSA, instance metadata, workload identity). Keys are never logged.

Example:
    >>> config_for("s3://bucket")          # POLICYLOOP_STORE_KEYS=/run/secrets/s3
    {'aws_access_key_id': '...', 'aws_secret_access_key': '...'}
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Any

from policyloop.errors import StoreError

PREFIXES = {"s3": ("AWS_",), "gs": ("GOOGLE_",), "az": ("AZURE_",)}


def config_for(uri: str) -> dict[str, Any]:
    """Settings for the client beyond what it reads from the environment itself."""
    scheme = uri.partition("://")[0].lower()
    given = {name: value for name, value in _secrets().items() if name.startswith(PREFIXES.get(scheme, ()))}
    if scheme == "s3" and not given and "AWS_ACCESS_KEY_ID" not in os.environ:
        given = _profile()
    return {name.lower(): value for name, value in given.items() if name not in os.environ}


def client_options(uri: str) -> Any:
    """http:// only where the address says so: a storage in the same pod or on loopback."""
    address = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    address = address or _secrets().get("AWS_ENDPOINT_URL", "")
    plain = uri.lower().startswith("s3") and address.lower().startswith("http://")
    return {"allow_http": True} if plain else {}


def _secrets() -> dict[str, str]:
    place = os.environ.get("POLICYLOOP_STORE_KEYS")
    if not place:
        return {}
    path = Path(place)
    try:
        if path.is_dir():
            files = [p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")]
            return {p.name.upper(): p.read_text(encoding="utf-8").strip() for p in files}
        lines = (line.strip().removeprefix("export ") for line in path.read_text(encoding="utf-8").splitlines())
        pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
        return {name.strip().upper(): value.strip().strip("'\"") for name, _, value in pairs}
    except OSError as problem:
        given = f"POLICYLOOP_STORE_KEYS = {place} cannot be read ({problem.strerror})"
        raise StoreError(
            "permission", given, "a file of NAME=value lines, or a folder of them", "POLICYLOOP_STORE_KEYS"
        ) from None


def _profile() -> dict[str, str]:
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(file, encoding="utf-8")
    except (OSError, configparser.Error):
        return {}
    section = os.environ.get("AWS_PROFILE", "default")
    return {name.upper(): value for name, value in parser[section].items()} if parser.has_section(section) else {}
