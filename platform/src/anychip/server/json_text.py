"""Read JSON text within the limits. Knows JSON; knows no field and no request."""

from __future__ import annotations

from pydantic_core import from_json

from anychip.recipe.limits import LimitsSection
from anychip.server.body_shape import check_text
from anychip_sdk.errors import RequestInvalid


def decoded(data: bytes, limits: LimitsSection) -> object:
    """The value.

    Raises:
        RequestInvalid: it is no JSON, or too much.
    """
    check_text(data, limits)
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestInvalid(f"the body is not valid JSON: {error}", code="invalid_json") from None


__all__ = ["decoded"]
