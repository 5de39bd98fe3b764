"""The Secrets that hold keys and token, as manifests, and what can be wrong with those that are there.

A Secret of ours says in annotations which revision of the key set it was made of, when it was written, and the SHA-256
of its file. So a Secret that somebody edited or restored from a backup is told from one of ours, and is never
overwritten: the keys that live calls need may be in it. The digest gives nothing away: keys are random.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

from usher_core.errors import LocalError
from usher_core.keys import KeyFile
from usher_operator import names
from usher_operator.actions import Create, Delete, Manifest, Reference, Replace
from usher_operator.keys.key_set import KeySet, parse_key_set, relay_file, signaling_file, transceiver_file
from usher_operator.seen import Json

KEY_SET_FILE = "key-set.json"
REVISION_ANNOTATION = f"{names.GROUP}/keys-revision"
DIGEST_ANNOTATION = f"{names.GROUP}/keys-digest"
WRITTEN_ANNOTATION = f"{names.GROUP}/keys-written-at"
DERIVED = (names.RELAY_KEYS_SECRET, names.TRANSCEIVER_KEYS_SECRET, names.SIGNALING_KEYS_SECRET)
ALL = (names.KEY_SET_SECRET, *DERIVED, names.TOKEN_SECRET)
TOKEN_BYTES = 32

_LABELS = {names.NAME_LABEL: names.APP, names.COMPONENT_LABEL: "keys", names.MANAGED_BY_LABEL: names.MANAGED_BY}
_KEPT = ("name", "namespace", "uid", "resourceVersion", "labels", "annotations", "finalizers", "ownerReferences")
_RESTORE = "restore it, or delete it together with " + ", ".join(DERIVED) + " to begin anew, which ends live calls"


def derive(keys: KeySet) -> dict[str, KeyFile]:
    """Return what each kind of program may know, by the name of its Secret."""
    return {
        names.RELAY_KEYS_SECRET: relay_file(keys),
        names.TRANSCEIVER_KEYS_SECRET: transceiver_file(keys),
        names.SIGNALING_KEYS_SECRET: signaling_file(keys),
    }


def read_key_set(secret: Json) -> KeySet:
    """Return the key set in its Secret. Raises LocalError when it is broken or not as the operator wrote it."""
    text = _checked_text(secret, KEY_SET_FILE, _RESTORE)
    try:
        keys = parse_key_set(text)
    except LocalError as error:
        raise LocalError(f"Secret {names.KEY_SET_SECRET} holds no key set: {error}", _RESTORE) from None
    if keys.revision != revision(secret):
        raise LocalError(f"Secret {names.KEY_SET_SECRET} was edited: its revisions differ", _RESTORE)
    return keys


def check_derived(secret: Json, keys: KeySet) -> None:
    """Check a derived Secret that is there. Raises LocalError when it is not as the operator wrote it, or newer."""
    name = _name(secret)
    _checked_text(secret, names.KEYS_FILE, f"delete Secret {name}, it is made again from {names.KEY_SET_SECRET}")
    if revision(secret) > keys.revision:
        raise LocalError(
            f"Secret {names.KEY_SET_SECRET} (revision {keys.revision}) is older than {name} ({revision(secret)})",
            "restore the newer one, or delete " + ", ".join(DERIVED) + " to use the older one, which ends live calls",
        )


def is_current(secret: Json, keys: KeySet, file: KeyFile) -> bool:
    """Tell whether a derived Secret, checked before, holds `file` of this revision."""
    return revision(secret) == keys.revision and _text(secret, names.KEYS_FILE) == _dump(file)


def revision(secret: Json) -> int:
    """Return the revision of the key set that a Secret was made of, checked before."""
    return int(_annotations(secret)[REVISION_ANNOTATION])


def written_at(secret: Json) -> float:
    """Return when a Secret, checked before, was written, in Unix seconds."""
    return float(_annotations(secret)[WRITTEN_ANNOTATION])


def demand(secret: Json) -> str:
    """Return the wish for a rotation that people left on the key set Secret, "" when there is none."""
    return str(_annotations(secret).get(names.ROTATE_ANNOTATION, ""))[:1024]


def check_token(secret: Json) -> None:
    """Check the token Secret that is there. Raises LocalError when it holds no token."""
    token = _text(secret, names.TOKEN_FILE)
    if token is None or not token.strip() or not token.isascii():
        raise LocalError(
            f"Secret {names.TOKEN_SECRET} has no usable `{names.TOKEN_FILE}`",
            "delete it, the operator makes another one; transceivers and signaling then read it anew",
        )


def write_key_set(keys: KeySet, namespace: str, now: float, old: Json | None) -> Create | Replace:
    """Return the action that stores a key set; it fails when another operator was first."""
    return _write(names.KEY_SET_SECRET, KEY_SET_FILE, keys.model_dump_json(), keys.revision, namespace, now, old)


def write_derived(
    name: str, file: KeyFile, keys: KeySet, namespace: str, now: float, old: Json | None
) -> Create | Replace:
    """Return the action that stores what programs of one kind may know."""
    return _write(name, names.KEYS_FILE, _dump(file), keys.revision, namespace, now, old)


def create_token(namespace: str, random: bytes) -> Create:
    """Return the action that makes the token of the internal API. `random`: TOKEN_BYTES random bytes."""
    token = base64.urlsafe_b64encode(random).rstrip(b"=").decode("ascii")
    metadata = {"name": names.TOKEN_SECRET, "namespace": namespace, "labels": dict(_LABELS)}
    return Create(_secret(metadata, names.TOKEN_FILE, token + "\n"))


def delete(secret: Json) -> Delete:
    """Return the action that deletes a Secret."""
    metadata = secret["metadata"]
    return Delete(Reference("v1", "Secret", metadata["namespace"], metadata["name"]), metadata["uid"])


def is_ours(secret: Json) -> bool:
    """Tell whether the operator made a Secret."""
    labels = secret["metadata"].get("labels") or {}
    return bool(labels.get(names.MANAGED_BY_LABEL) == names.MANAGED_BY)


def _write(
    name: str, file: str, text: str, revision: int, namespace: str, now: float, old: Json | None
) -> Create | Replace:
    ours = {
        REVISION_ANNOTATION: str(revision),
        DIGEST_ANNOTATION: _digest(text),
        WRITTEN_ANNOTATION: str(int(now)),
    }
    if old is None:
        metadata = {"name": name, "namespace": namespace, "labels": dict(_LABELS), "annotations": ours}
        return Create(_secret(metadata, file, text))
    kept = {field: value for field, value in old["metadata"].items() if field in _KEPT}
    labels = {**(kept.get("labels") or {}), **_LABELS}
    annotations = {**(kept.get("annotations") or {}), **ours}
    return Replace(_secret({**kept, "labels": labels, "annotations": annotations}, file, text))


def _secret(metadata: Mapping[str, Any], file: str, text: str) -> Manifest:
    data = base64.b64encode(text.encode()).decode("ascii")
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": {file: data}}


def _checked_text(secret: Json, file: str, fix: str) -> str:
    name, marks = _name(secret), _annotations(secret)
    text = _text(secret, file)
    if text is None:
        raise LocalError(f"Secret {name} has no readable `{file}`", fix)
    numbers = (marks.get(REVISION_ANNOTATION, ""), marks.get(WRITTEN_ANNOTATION, ""))
    if not all(number.isascii() and number.isdigit() and len(number) < 16 for number in numbers):
        raise LocalError(f"Secret {name} was not made by the operator", fix)
    if marks.get(DIGEST_ANNOTATION) != _digest(text):
        raise LocalError(f"Secret {name} was edited by hand", fix)
    return text


def _dump(file: KeyFile) -> str:
    return file.model_dump_json(indent=2) + "\n"


def _text(secret: Json, file: str) -> str | None:
    try:
        return base64.b64decode((secret.get("data") or {})[file], validate=True).decode("utf-8")
    except (KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _annotations(secret: Json) -> Mapping[str, str]:
    return secret["metadata"].get("annotations") or {}


def _name(secret: Json) -> str:
    return str(secret["metadata"]["name"])
