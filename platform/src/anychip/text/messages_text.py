"""Make a request's messages into what chat templates expect. Knows OpenAI's content parts; knows no template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anychip_sdk.errors import RequestInvalid


def plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """The messages with every content a text (or None, for an assistant's). Other keys stay as they are.

    Templates disagree about lists of parts: many drop or print them. So text parts are joined with newlines here
    and a template sees texts only.

    Raises:
        RequestInvalid: naming the message and the part.
    """
    if not messages:
        raise RequestInvalid("messages is empty, expected at least one message", param="messages")
    return [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain(message: Mapping[str, object], where: str) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise RequestInvalid(f"{where} is {type(message).__name__}, expected an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestInvalid(f"{where}.role is {role!r}, expected a text", param=f"{where}.role")
    return {**message, "content": _content(message.get("content"), role, f"{where}.content")}


def _content(content: object, role: str, where: str) -> str | None:
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return None
        raise RequestInvalid(f"{where} is null, which only an assistant's may be", param=where)
    if not isinstance(content, Sequence):
        raise RequestInvalid(f"{where} is {type(content).__name__}, expected text or text parts", param=where)
    return "\n".join(_part(part, f"{where}[{j}]") for j, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise RequestInvalid(f"{where} is {type(part).__name__}, expected an object", param=where)
    kind = part.get("type")
    if kind != "text":
        raise RequestInvalid(f"{where}.type is {kind!r}, only 'text' is supported", param=f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestInvalid(f"{where}.text is {text!r}, expected a text", param=f"{where}.text")
    return text


__all__ = ["plain_messages"]
