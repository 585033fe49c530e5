"""Write down what `ringmpi verify` found, and check an output against what was written down before."""

from __future__ import annotations

import platform
import socket
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ringmpi import __version__
from ringmpi.analysis.against import compare
from ringmpi.analysis.certificate import Certificate, Check, json_able
from ringmpi.analysis.evidence import (
    ArrayFacts,
    Evidence,
    Positions,
    Quantity,
    Sample,
    facts_digest,
    facts_of,
    read_evidence,
)
from ringmpi.analysis.recompute import Ints
from ringmpi.analysis.verify import Found, Request, check_output, checked_request
from ringmpi.storage.recorded import RecordedArray
from ringmpi.storage.results import Results
from ringmpi.storage.source import ArraySource

PACKAGES = ("numpy", "h5py")


def certify_file(
    path: str | Path, rows: int | None = 64, seed: int = 0, *, input_path: str | Path | None = None
) -> tuple[Certificate, Evidence]:
    """Check an output file, and gather what others need to check it again. Parameters and errors: see `verify_file`.

    The input is read whole, for its digests; `evidence.write_evidence` writes the certificate file.
    """
    request = checked_request(rows, seed, input_path, thorough=True)
    with Results(path) as results:
        found = check_output(results, request)
        evidence = _evidence(results, found, seed)
    return Certificate(str(path), seed, tuple(found.checks)), evidence


def verify_against(
    path: str | Path, certificate_path: str | Path, *, input_path: str | Path | None = None
) -> Certificate:
    """Check an output file again, by the rows that a certificate names, and compare all that it says.

    Parameters
    ----------
    path : path
        The output file.
    certificate_path : path
        What `ringmpi verify --certificate` has written.
    input_path : path or None
        Where the input is now. None: where the run read it.

    Returns
    -------
    Certificate
        The checks of `verify_file`, then those against the certificate.

    Raises
    ------
    StorageError
        If one of both files is missing, damaged or something else.
    """
    then, whole = read_evidence(Path(certificate_path))
    moved, sample = None if input_path is None else Path(input_path), then.sample
    request = Request(0, sample.seed, moved, listed=(sample.positions, sample.keys), thorough=True)
    with Results(path) as results:
        found = check_output(results, request)
        now = _evidence(results, found, sample.seed)
    compared = compare(then, now, str(certificate_path), whole=whole)
    return Certificate(str(path), sample.seed, (*found.checks, *compared))


def _evidence(results: Results, found: Found, seed: int) -> Evidence:
    """Everything that a certificate says."""
    bits = {check.of: str(check.facts["found"]) for check in found.checks if check.kind == "digest"}
    lengths = found.lengths
    evidence = Evidence(
        verdict="verified" if all(check.passed for check in found.checks) else "not verified",
        output={array.name: _array(array, bits[array.name]) for array in results.arrays},
        input={name: _array(array, digest) for name, (array, digest) in found.input_digests.items()},
        run=_run(results),
        question=json_able(found.question),
        pairs=_pairs(found.checks),
        sample=Sample(seed=seed, positions=_listed(found.positions, lengths[0]), keys=_listed(found.keys, lengths[1])),
        quantities={
            check.of: Quantity(**{name: check.facts[name] for name in Quantity.model_fields})
            for check in found.checks
            if check.kind == "rows"
        },
        checks={check.name: check.passed for check in found.checks},
        findings={check.name: check.text for check in found.checks if not check.passed},
        issued=_issued(),
    )
    return Evidence.model_validate(facts_of(evidence))  # as it will be read


def _array(array: ArraySource | RecordedArray, digest: str) -> ArrayFacts:
    return ArrayFacts(dataset=array.name, shape=array.shape, dtype=array.dtype.name, blake2b=digest)


def _run(results: Results) -> dict[str, Any]:
    """Provenance, the ring, and the runs before; without the times of ring steps."""
    account = results.account
    others = {"placement": account.placement, "attempts": account.attempts, "computed_by": account.computed_by}
    run = asdict(account.provenance) | {
        "ranks": len(account.provenance.hosts),
        "shards": [facts_digest(_bounds(shards)) for shards in _shards(results)],
        **{name: asdict(each) for name, each in others.items() if each is not None},
    }
    facts: dict[str, Any] = json_able(run)
    return facts


def _shards(results: Results) -> list[tuple[tuple[range, ...], ...]]:
    """Which rank held which positions: of queries, of keys where there are gradients."""
    return [results.shards, *([results.key_shards] if results.gradients else [])]


def _bounds(shards: Sequence[Sequence[range]]) -> list[list[list[int]]]:
    return [[[part.start, part.stop, part.step] for part in shard] for shard in shards]


def _pairs(found: Sequence[Check]) -> dict[str, int]:
    """The counts of all passes: those of the map pass begin with map_, of the backward pass with backward_."""
    return {
        f"{check.of and f'{check.of}_'}{fact}": count
        for check in found
        if check.kind == "pairs"
        for fact, count in check.facts.items()
        if isinstance(count, int)
    }


def _listed(positions: Ints, length: int) -> Positions:
    return "all" if 0 < length == len(positions) else tuple(positions.tolist())


def _issued() -> dict[str, str]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": socket.gethostname(),
        "ringmpi": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }
