"""What an option requires, said once: the same sentence checks, documents and appears in the message."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, Strict, StringConstraints, ValidationError, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import PydanticCustomError

from ringmpi.core.whole_numbers import LARGEST_POSITION

# Of an option in the document: keys, and indices of lists.
Location: TypeAlias = tuple[int | str, ...]

REQUIREMENT_BROKEN = "requirement_broken"


class Options(BaseModel):
    """A frozen table of options: strict types, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def needs(requirement: str, advice: str) -> WrapValidator:
    """Reduce all that can be wrong with one option to what it requires ("must be ...") and what to do."""

    def check(value: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            wrong_type = all(found["type"].endswith("_type") and found["input"] is value for found in error.errors())
            raise broken(requirement, advice, wrong_type=wrong_type) from None

    return WrapValidator(check)


def broken(requirement: str, advice: str, *, wrong_type: bool) -> PydanticCustomError:
    """The error of an option that is not what it must be (config/messages.py writes the line)."""
    context = {"requirement": requirement, "advice": advice, "wrong_type": wrong_type}
    return PydanticCustomError(REQUIREMENT_BROKEN, "{requirement}", context)


# TOML has arrays, frozen objects have tuples: only the container is converted, its items stay strict.
FromArray = Strict(False)
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\x00]+$")]
Finite: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
PositiveNumber: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=LARGEST_POSITION)]
Whole: TypeAlias = Annotated[int, Field(ge=-LARGEST_POSITION, le=LARGEST_POSITION)]
