"""Messages of the parts in Rust, in the words of Python: they are written for pipeline files and the command line."""

from __future__ import annotations

import keyword
import re

__all__ = ["in_python", "pipeline_in_python"]

# A command to type stays as it is.
_COMMAND = re.compile(r"(`gristmill[^`]*`)")
_FLAG = re.compile(r"(?<![\w-])--([a-z][a-z-]*)(?:[ =](?=[\w'\"<])('[^']*'|\"[^\"]*\"|[A-Z]\b|auto|off|[0-9][\w.%]*))?")
_INVALID = re.compile(r"invalid value '(.*?)' for [`'](\w+)(?: <[^>]*>)?[`']: (.*)")
_UNEXPECTED = re.compile(r"unexpected argument '(\w+)' found")


def in_python(message: str) -> str:
    """The message with options as keyword arguments: `workers="auto"` for `--workers auto`."""
    if "--" not in message:
        return message
    parts = _COMMAND.split(message)
    return "".join(part if _COMMAND.fullmatch(part) else _FLAG.sub(_option, part) for part in parts)


def invalid_in_python(message: str) -> str:
    """A message about an option: the option and its value come first."""
    found = _UNEXPECTED.fullmatch(message)
    if found:
        return f"{found[1]} is no option"
    found = _INVALID.fullmatch(message)
    if not found:
        return message
    value, name, why = found.groups()
    why = why.replace("1..=", "1 to ").replace("0..=", "0 to ")
    why = f"it {why.removeprefix(value).strip()}" if why.startswith(f"{value} ") else why
    return f"{name}={value if value.lstrip('-').isdecimal() else repr(value)}: {why}"


def _option(match: re.Match[str]) -> str:
    name = match[1].replace("-", "_")
    value = match[2]
    if value is None:
        return name
    is_plain = value[0] in "'\"" or value.isupper() or value.replace(".", "").isdecimal()
    return f"{name}={value}" if is_plain else f'{name}="{value}"'


# Advice on a pipeline.

_QUOTED = re.compile(r"`([^`]+)`")
# A text that was given in place of something else.
_TEXT = re.compile(r", not `([^`]*)`$")
_ENTRY = re.compile(r"(?:- )?([a-z_]\w*): (.+)")
_PHRASES = (
    ("end `ops` with ", "end it with "),
    ("`source` needs `features`", "the source needs fields, such as `x=gm.i64()`"),
    ("`features` names", "the source names"),
    ("`ops` has", "the pipeline has"),
    (" must be text (quote it if it looks like a number)", " must be a text"),
    (" must be a mapping of keys", " must be a dict"),
    (", not a mapping", ", not a dict"),
    ("; it needs `source` and `ops`", "; it needs a source and operators"),
)
_WORDS = {"true": "True", "false": "False", "null": "None"}


def pipeline_in_python(message: str) -> str:
    """A message about a pipeline that was written in Python: `.batch(size=64)` for `- batch: { size: 64 }`."""
    for yaml, python in _PHRASES:
        message = message.replace(yaml, python)
    message = _TEXT.sub(lambda match: f", not {match[1]!r}", message)
    return _QUOTED.sub(lambda match: f"`{_call(match[1])}`", message)


def _call(text: str) -> str:
    if re.fullmatch(r"[a-z_]\w*:", text):
        return f"{_word(text[:-1])}=..."
    entry = _ENTRY.fullmatch(text)
    if not entry:
        return text
    name, value = entry.groups()
    if not value.startswith("{"):
        return f"{_word(name)}={_value(value)}"
    inner = [pair.partition(": ") for pair in value.strip("{} ").split(", ")]
    keys = {key: given for key, _, given in inner}
    if keys.keys() == {"key", "dtype"}:
        return f'{_word(name)}=gm.{keys["dtype"]}("{keys["key"]}")'
    return f".{_word(name)}({', '.join(f'{_word(key)}={_value(given)}' for key, given in keys.items())})"


def _word(key: str) -> str:
    return f"{key}_" if keyword.iskeyword(key) else key


def _value(text: str) -> str:
    if text in _WORDS:
        return _WORDS[text]
    return f'"{text}"' if re.fullmatch(r"[A-Za-z_]\w*", text) else text
