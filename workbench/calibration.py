"""Sample rows of a source, render and tokenize them, and seal exactly what a method will see.

The sample is the same on every machine and Python: rows are put in the order of
``sha256(seed, row id)`` and the first usable ones are taken, so no random generator is involved.
With strata each value of the field is drawn from by itself, in the same order.

A sample is one row, cut at `max_tokens`, or (`packing: pack`) a stretch of exactly `max_tokens` of
all rows one after another, with the end-of-sequence token between two rows; what does not fit
into a sample begins the next. A packed sample holds rows of one stratum only.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from workbench.calibration_records import (
    LENGTH_BINS,
    MOST_DROPPED_IDS,
    Calibration,
    Dropped,
    Lengths,
    Strata,
    Stratum,
    seal_of,
)
from workbench.calibration_spec import MIN_TOKENS, CalibrationSpec, HubSource
from workbench.digest import canonical_json, content_id, sha256_bytes, sha256_file, sha256_text
from workbench.errors import CalibrationError, RecipeError, did_you_mean
from workbench.packing import Rendered, Sample, cut, pack, token_digest
from workbench.sources import SourceRow, read_source, resolve_source
from workbench.store import write_atomic
from workbench.tables import Faults
from workbench.tokenizer import Tokenizer

__all__ = ["MIN_TOKENS", "allocate", "altered", "draw", "resolve_source", "seal", "tokenize_row"]

TOKENS_FILE = "tokens.jsonl"


class _Drops:
    """Rows left out, by reason: all are counted, the first are named."""

    def __init__(self, skipped: Mapping[str, Sequence[str]]) -> None:
        self._rows = {reason: list(ids) for reason, ids in skipped.items()}

    def add(self, reason: str, row_id: str) -> None:
        self._rows.setdefault(reason, []).append(row_id)

    def __str__(self) -> str:
        listed = ", ".join(f"{len(ids)} {reason}" for reason, ids in sorted(self._rows.items()))
        return listed or "none dropped"

    @property
    def record(self) -> dict[str, Dropped]:
        return {
            reason: Dropped(count=len(ids), rows=tuple(ids[:MOST_DROPPED_IDS]))
            for reason, ids in sorted(self._rows.items())
        }


def seal(
    spec: CalibrationSpec, source: Path, tokenizer: Tokenizer, id_: str, folder: Path
) -> Calibration:
    """Draw a set and write its token ids beside the record; see `draw`.

    Args:
        spec: how many rows, how long, which seed, with the template or without.
        source: the source's file.
        tokenizer: of the checkpoint that will be quantized.
        id_: content id of the step.
        folder: where ``tokens.jsonl`` goes, one JSON list of token ids a line, in sampling order.
    """
    record, tokens = draw(spec, source, tokenizer, id_)
    lines = "".join(json.dumps(ids, separators=(",", ":")) + "\n" for ids in tokens)
    write_atomic(folder / TOKENS_FILE, lines.encode())
    return record


def draw(
    spec: CalibrationSpec, source: Path, tokenizer: Tokenizer, id_: str = ""
) -> tuple[Calibration, list[list[int]]]:
    """Sample, render and tokenize. Writes nothing.

    Returns:
        The record and the token ids of each sample. ``dropped`` counts blank lines, null, empty,
        whitespace and duplicate rows and rows of no stratum over the whole source, and rows that
        are too short or have another row's tokens among those drawn before the sample was full.

    Raises:
        CalibrationError: the source is broken or too small, or the template refuses a row.
    """
    if spec.chat_template and tokenizer.template is None:
        raise CalibrationError(
            "the checkpoint has no chat template to render the rows with",
            where="calibration: chat_template",
            fix="say 'chat_template: none' under 'calibration' to take the rows as they are",
        )
    digest = sha256_file(source)
    found = read_source(spec, source)
    drops = _Drops(found.skipped)
    groups = _groups(spec, _usable(found.rows, drops), drops, source)
    total = sum(map(len, groups.values()))
    quotas = _quotas(spec, {name: len(rows) / total for name, rows in groups.items() if total})
    counts = allocate(quotas, spec.samples)
    samples: list[Sample] = []
    seen: set[str] = set()
    for name, wanted in counts.items():
        faults = Faults(source)
        rendered = _render(groups[name], spec, tokenizer, drops, seen, faults)
        if spec.packing == "pack":
            made = pack(rendered, wanted, spec.max_tokens, _separator(tokenizer), len(samples))
        else:
            made = cut(rendered, wanted, spec.max_tokens)
        faults.tell()
        if len(made) < wanted:
            have = (wanted, len(made))
            raise _too_few(spec, name, have, len(found.rows), drops, source)
        samples += made
    if spec.strata:
        # Mixed, so that a method that stops early has seen every stratum.
        samples.sort(key=lambda s: _order(spec.seed, s.sealed.row))
    record = Calibration(
        id=id_,
        source=spec.label,
        source_revision=spec.source.revision if isinstance(spec.source, HubSource) else None,
        source_digest=digest,
        source_rows=len(found.rows)
        + sum(len(ids) for reason, ids in found.skipped.items() if reason != "blank line"),
        tokenizer_digest=tokenizer.digest,
        template_digest=tokenizer.template_digest if spec.chat_template else None,
        seed=spec.seed,
        max_tokens=spec.max_tokens,
        min_tokens=spec.min_tokens,
        packing=spec.packing,
        rows=tuple(sample.sealed for sample in samples),
        strata=_strata(spec, groups, quotas, counts),
        lengths=Lengths(
            rendered=_histogram(n for sample in samples for n in sample.lengths),
            sealed=_histogram(len(sample.ids) for sample in samples),
        ),
        dropped=drops.record,
        seal="",
        tokens_file=TOKENS_FILE,
    )
    if sha256_file(source) != digest:
        raise CalibrationError(
            "the file changed while it was read", where=str(source), fix="run the command again"
        )
    return record.model_copy(update={"seal": seal_of(record)}), [s.ids for s in samples]


def altered(folder: Path, record: Calibration) -> str:
    """What is wrong with the tokens a record speaks of; an empty text where nothing is."""
    if record.seal != seal_of(record):
        return "its seal is not that of what it says"
    try:
        lines = (folder / record.tokens_file).read_bytes().splitlines()
        digests = [sha256_bytes(canonical_json(json.loads(line))) for line in lines]
    except (OSError, ValueError, RecursionError):
        return f"its tokens {record.tokens_file} are lost or damaged"
    if digests != [row.token_digest for row in record.rows]:
        return f"its tokens {record.tokens_file} are not those that were sealed"
    return ""


def allocate(shares: Mapping[str, float], samples: int) -> dict[str, int]:
    """Divide samples by shares: each its whole part, the rest to the largest remainders.

    Args:
        shares: name -> weight above 0; they need not add up to 1.
        samples: how many there are to divide.

    Returns:
        Name -> count, in the order of `shares`; ties go to the name that sorts first.
    """
    total = math.fsum(shares.values())
    exact = {name: samples * share / total for name, share in shares.items()}
    # 0.29 x 100 is 28.999999999999996: what is a whole number by its decimals is one.
    counts = {name: math.floor(round(value, 9)) for name, value in exact.items()}
    rest = sorted(shares, key=lambda name: (-round(exact[name] - counts[name], 9), name))
    for name in rest[: samples - sum(counts.values())]:
        counts[name] += 1
    return counts


def _order(seed: int, row_id: str) -> str:
    return hashlib.sha256(f"{seed}\n{row_id}".encode("utf-8", "surrogatepass")).hexdigest()


def _histogram(lengths: Iterable[int]) -> tuple[int, ...]:
    counts = [0] * len(LENGTH_BINS)
    for length in lengths:
        counts[bisect_right(LENGTH_BINS, length) - 1] += 1
    return tuple(counts)


def _usable(rows: list[SourceRow], drops: _Drops) -> list[SourceRow]:
    """Rows that say something and say it first; the rest is dropped."""
    usable: list[SourceRow] = []
    seen: set[str] = set()
    for row in rows:
        contents = [message["content"] for message in row.messages]
        digest = content_id([dict(message) for message in row.messages])
        if any(not content for content in contents):
            drops.add("empty", row.id)
        elif any(not content.strip() for content in contents):
            drops.add("whitespace only", row.id)
        elif digest in seen:
            drops.add("duplicate text", row.id)
        else:
            seen.add(digest)
            usable.append(row)
    return usable


def _groups(
    spec: CalibrationSpec, usable: list[SourceRow], drops: _Drops, source: Path
) -> dict[str, list[SourceRow]]:
    """Usable rows by stratum, each in the order they are drawn; one nameless group without strata.

    Raises:
        CalibrationError: no row has a value, or none that a quota speaks of.
    """
    ordered = sorted(usable, key=lambda row: _order(spec.seed, row.id))
    strata = spec.strata
    if strata is None:
        return {"": ordered}
    groups: dict[str, list[SourceRow]] = {}
    for row in ordered:
        if row.stratum is not None:
            groups.setdefault(row.stratum, []).append(row)
    for name in strata.quotas or ():
        if name not in groups:
            raise CalibrationError(
                f"no usable row has {strata.by} '{name}' ({drops})",
                where=f"{source}; calibration: strata.quotas",
                fix=f"{did_you_mean(name, groups)}values: {', '.join(sorted(groups)) or 'none'}",
            )
    chosen = strata.quotas or groups
    if not chosen:
        raise CalibrationError(
            f"no usable row has a value of '{strata.by}' to stratify by ({drops})",
            where=f"{source}; calibration: strata.by",
            fix="fill the field in, or leave 'strata' out",
        )
    for row in usable:  # in file order, as other rows are dropped
        if row.stratum is None:
            drops.add(f"no {strata.by}", row.id)
        elif row.stratum not in chosen:
            drops.add(f"{strata.by} without a quota", row.id)
    return {name: groups[name] for name in sorted(chosen)}


def _quotas(spec: CalibrationSpec, proportional: dict[str, float]) -> dict[str, float]:
    if spec.strata is None:
        return {"": 1.0}
    quotas = spec.strata.quotas or proportional
    total = math.fsum(quotas.values())
    return {name: quotas[name] / total for name in sorted(quotas)}


def _strata(
    spec: CalibrationSpec,
    groups: Mapping[str, Sequence[SourceRow]],
    quotas: Mapping[str, float],
    counts: Mapping[str, int],
) -> Strata | None:
    if spec.strata is None:
        return None
    return Strata(
        by=spec.strata.by,
        values={
            name: Stratum(rows=len(groups[name]), quota=quotas[name], samples=count)
            for name, count in counts.items()
        },
    )


def _render(
    rows: list[SourceRow],
    spec: CalibrationSpec,
    tokenizer: Tokenizer,
    drops: _Drops,
    seen: set[str],
    faults: Faults,
) -> Iterator[Rendered]:
    """Rows of at least `min_tokens`, rendered and tokenized when they are asked for.

    A row whose tokens were `seen` is dropped: behind a long system prompt all of a row may be cut
    off that is its own, and a template may leave it out. One that cannot be rendered goes to
    `faults`: no set is made then, and more rows are drawn only to tell theirs as well.
    """
    end = spec.max_tokens if spec.packing == "truncate" else None
    for row in rows:
        try:
            text, ids = tokenize_row(row, spec, tokenizer)
        except CalibrationError as error:
            faults.add(error)
            continue
        own = len(ids)
        if spec.chat_template:
            # Of what the row says: a template's own words would make any row long enough.
            own = min(own, len(tokenizer.encode(row.text, add_special_tokens=False)))
        if own < spec.min_tokens:
            drops.add(f"shorter than {spec.min_tokens} tokens", row.id)
        elif (digest := token_digest(ids[:end])) in seen:
            drops.add(f"with another row's {f'first {end} ' if end else ''}tokens", row.id)
        else:
            seen.add(digest)
            yield Rendered(row.id, sha256_text(text), ids)


def _too_few(
    spec: CalibrationSpec, name: str, counts: tuple[int, int], rows: int, drops: _Drops, path: Path
) -> CalibrationError:
    """Of the samples wanted of a stratum, `counts` has how many, and how many there are."""
    wanted, have = counts
    usable = f"has {have} usable rows"
    if spec.packing == "pack":
        usable = f"fills {have} of {spec.max_tokens} tokens"
    short = any(reason.startswith("shorter than") for reason in drops.record)
    template = short and bool(spec.chat_template) and not have
    if spec.strata:
        return CalibrationError(
            f"{wanted} of the {spec.samples} samples are asked of {spec.strata.by} '{name}', which "
            f"{usable} ({drops})",
            where=f"{path}; calibration: strata",
            fix="ask for fewer samples, give it a smaller quota, or add rows",
        )
    return CalibrationError(
        f"{wanted} samples are asked for, the source {usable}, with {rows} rows in all ({drops})",
        where=str(path),
        fix=(f"ask for at most {have} ('calibration: samples'), or " if have else "")
        + (f"add rows of {spec.min_tokens} tokens or more, " if short else "add rows")
        + ("lower calibration.min_tokens" if short else "")
        + (", or see whether the chat template shows the messages" if template else ""),
    )


def _separator(tokenizer: Tokenizer) -> int:
    if tokenizer.eos_id is None:
        raise CalibrationError(
            "rows are packed with an end-of-sequence token between, and the tokenizer has none",
            where="calibration: packing",
            fix="say 'packing: truncate'",
        )
    return tokenizer.eos_id


def tokenize_row(
    row: SourceRow, spec: CalibrationSpec, tokenizer: Tokenizer
) -> tuple[str, list[int]]:
    """A row's text as the model reads it, and its tokens.

    Raises:
        CalibrationError: the template refuses it, or it begins with two BOS tokens.
    """
    if not spec.chat_template:
        text = row.text
        # No template wrote a BOS, so the tokenizer adds what it always adds.
        ids = tokenizer.encode(text, add_special_tokens=True)
    else:
        try:
            text = tokenizer.render(row.messages, add_generation_prompt=False)
        except RecipeError as error:
            raise CalibrationError(
                f"row '{row.id}': {error.what}", where=row.where, fix=error.fix
            ) from error
        ids = tokenizer.encode(text, add_special_tokens=False)
    bos = tokenizer.bos_id
    if bos is not None and ids[:2] == [bos, bos]:
        raise CalibrationError(
            f"row '{row.id}' begins with the beginning-of-sequence token twice",
            where=row.where,
            fix="remove the token from the row's text, or from the chat template",
        )
    return text, ids
