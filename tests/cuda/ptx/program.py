"""From the text of PTX to instructions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NOISE = re.compile(r"//[^\n]*|^\s*\.(?:loc|file|pragma)\b[^\n]*", re.MULTILINE)
_LABEL = re.compile(r"([$\w]+):")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*")
_STATEMENT = re.compile(r"(?:@(?P<not>!?)(?P<guard>%\w+)\s+)?(?P<name>[\w.:]+)\s*(?P<rest>.*)", re.DOTALL)


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes
    ----------
    name : str
        With all its modifiers: "add.s64".
    operands : tuple of str
        The target first; "{a, b}" and "[a+8]" are one each.
    guard, negated : str, bool
        The predicate that it hangs on ("": none), and whether that must be false.
    """

    name: str
    operands: tuple[str, ...]
    guard: str
    negated: bool

    def __str__(self) -> str:
        """Nearly as it was written."""
        guard = f"@{'!' * self.negated}{self.guard} " * bool(self.guard)
        return f"{guard}{self.name} {', '.join(self.operands)}"


@dataclass
class Program:
    """The entry of a kernel.

    Attributes
    ----------
    parameter : str
        Name of the parameter, of which there is one, passed by value.
    instructions : list
    labels : dict
        Name -> index of the instruction after it.
    registers : dict
        Name -> type: "%r" -> "b32" for all of %r<n>, "%temp_in3" -> "b32" for one of an inner block.
    """

    parameter: str
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)


def parse(ptx: str) -> Program:
    """Read the first entry.

    Raises
    ------
    NotImplementedError
        For what kernels here do not have: shared memory of a fixed size, calls.
    """
    ptx = _NOISE.sub("", ptx)
    if re.search(r"(?<!\.extern) \.shared|\.func\b", ptx) or re.search(r"^\s*\.shared", ptx, re.MULTILINE):
        raise NotImplementedError("shared memory of a fixed size, or a function")
    head = ptx[ptx.index(".entry") :]
    parameters = re.findall(r"\.param\s+[^,()]*?(\w+)(?:\[\d+\])?\s*[,)]", head[: head.index("{")])
    if len(parameters) != 1:
        raise NotImplementedError(f"{len(parameters)} parameters; kernels here take one record")
    program = Program(parameters[0])
    _read_block(head, head.index("{") + 1, program)
    return program


def _read_block(text: str, at: int, program: Program) -> None:
    scopes: list[dict[str, str]] = [{}]
    count = 0
    while scopes:
        while text[at].isspace():
            at += 1
        if text[at] == "{":
            scopes.append({})
            at, count = at + 1, count + 1
        elif text[at] == "}":
            scopes.pop()
            at += 1
        elif label := _LABEL.match(text, at):
            program.labels[label[1]] = len(program.instructions)
            at = label.end()
        else:
            end = text.index(";", at)
            _read_statement(" ".join(text[at:end].split()), program, scopes, f"_in{count}")
            at = end + 1


def _read_statement(statement: str, program: Program, scopes: list[dict[str, str]], suffix: str) -> None:
    if statement.startswith(".reg"):
        _, kind, *names = statement.replace(",", " ").split()
        for name in names:
            prefix = name.partition("<")[0]
            own = prefix + suffix * (len(scopes) > 1)
            scopes[-1][prefix] = own
            program.registers[own] = kind.removeprefix(".")
        return
    if not statement or statement.startswith(".local"):
        return
    for scope in reversed(scopes[1:]):  # a name of an inner block hides one outside
        statement = re.sub(r"%\w+", lambda found, scope=scope: scope.get(found[0], found[0]), statement)  # type: ignore[misc]
    match = _STATEMENT.fullmatch(statement)
    assert match is not None, statement
    operands = tuple(found.strip() for found in _OPERAND.findall(match["rest"]))
    program.instructions.append(Instruction(match["name"], operands, match["guard"] or "", bool(match["not"])))
