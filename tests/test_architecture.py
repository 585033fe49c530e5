"""Rules that keep the code findable: which way imports go, how long a thing may be. This file is their only home."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from ringmpi import _HOMES

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "ringmpi").rglob("*.py"))

MODULE_LINES = 300
BODY_LINES = 40
PARAMETERS = 6
CALLS_AT_HOME = {home for name, home in _HOMES.items() if name.islower()} | {"ringmpi.torch"}  # modules of functions
PUBLIC_CALLS = [ROOT / f"{home.replace('.', '/')}.py" for home in CALLS_AT_HOME]
PUBLIC_CALL_OPTIONS = 18  # there: the options of attention and of its gradients, each by its name
ARRAYS = {"q", "k", "v"}  # always travel together: they count as one parameter, and positional arguments end with them
SAVED = "saved"  # of the rows of q, for a backward call: counts as one of these arrays
COME_WITH_OTHERS = {"pydantic_core"}  # pydantic pins its exact version
LIBRARIES = {"nvidia"}  # declared, and loaded by what is imported (cuda)
EXTRAS = ["torch", "bench", "cuda13"]  # of ringmpi.torch, of the peers in benchmarks, of the CUDA backend
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "stuff"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def tree_of(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the last one."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def parameters(function: Function) -> list[str]:
    """Names of the parameters; q, k and v (and what is saved of them) as one, `self` and `cls` not at all."""
    signature = function.args
    names = [a.arg for a in (*signature.posonlyargs, *signature.args, *signature.kwonlyargs)]
    names += [a.arg for a in (signature.vararg, signature.kwarg) if a]
    others = [name for name in names if name not in {"self", "cls", *ARRAYS}]
    if set(names) >= ARRAYS:
        return [*(name for name in others if name != SAVED), "q, k, v"]
    return others + [n for n in names if n in ARRAYS]


def public(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """What a reader may call: the classes and functions of a module, and the methods of its public classes."""
    for node in tree.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield node.name, node
        if isinstance(node, ast.ClassDef):
            methods = (m for m in node.body if isinstance(m, Function) and not m.name.startswith("_"))
            yield from ((f"{node.name}.{m.name}", m) for m in methods if not m.decorator_list)


def findings(look: Callable[[Path], object]) -> dict[str, object]:
    """What `look` finds in each module that has something wrong, by path."""
    return {str(path.relative_to(ROOT)): found for path in MODULES if (found := look(path))}


def test_imports_flow_one_way():
    lint_imports = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", lint_imports, "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_modules_are_short():
    def excess(path: Path) -> int:
        return max(len(path.read_text(encoding="utf-8").splitlines()) - MODULE_LINES, 0)

    assert findings(excess) == {}, f"lines above {MODULE_LINES}"


def test_functions_fit_on_a_screen():
    def long(path: Path) -> dict[str, int]:
        return {f.name: body_lines(f) for f in functions(tree_of(path)) if body_lines(f) > BODY_LINES}

    assert findings(long) == {}, f"bodies of more than {BODY_LINES} lines"


def test_functions_have_few_parameters():
    def many(path: Path) -> dict[str, list[str]]:
        limit = PUBLIC_CALL_OPTIONS if path in PUBLIC_CALLS else PARAMETERS
        return {f.name: parameters(f) for f in functions(tree_of(path)) if len(parameters(f)) > limit}

    assert findings(many) == {}, f"more than {PARAMETERS} parameters"


def test_options_of_public_calls_are_given_by_name():
    def positional(path: Path) -> list[str]:
        calls = functions(tree_of(path)) if path in PUBLIC_CALLS else ()
        signatures = {f.name: [a.arg for a in f.args.args] for f in calls}
        return [
            name
            for name, arguments in signatures.items()
            if set(arguments) >= ARRAYS and arguments[arguments.index("v") + 1 :] not in ([], ["out"])
        ]

    assert findings(positional) == {}, "put a * after the arrays"


def test_module_names_say_what_is_inside():
    assert findings(lambda path: NAMES_THAT_SAY_NOTHING & set(path.relative_to(ROOT).with_suffix("").parts)) == {}


def test_public_things_are_described():
    def silent(path: Path) -> list[str]:
        tree = tree_of(path)
        nameless = tree.body and path.name not in {"__init__.py", "__main__.py"} and not ast.get_docstring(tree)
        return ["the module"] * bool(nameless) + [name for name, node in public(tree) if not ast.get_docstring(node)]

    assert findings(silent) == {}, "without a docstring"


def test_nothing_is_read_from_the_environment_at_import():
    def touched(path: Path) -> set[str]:
        at_import = [node for node in tree_of(path).body if not isinstance(node, Function | ast.ClassDef)]
        names = {getattr(n, "attr", getattr(n, "id", None)) for node in at_import for n in ast.walk(node)}
        return names & {"environ", "getenv", "default_rng", "COMM_WORLD"}

    assert findings(touched) == {}


def test_dependencies_are_what_is_imported():
    imported = set()
    for node in (node for path in MODULES for node in ast.walk(tree_of(path))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            imported.add(node.module.split(".")[0])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [requirement for extra in EXTRAS for requirement in project["optional-dependencies"][extra]]
    declared = {re.match(r"\w+", requirement)[0] for requirement in [*project["dependencies"], *extras]}
    assert imported - sys.stdlib_module_names - {"ringmpi"} - COME_WITH_OTHERS == declared - LIBRARIES


def test_there_is_something_to_judge():
    assert len(MODULES) > 10
