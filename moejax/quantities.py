"""Parse and format numbers such as 30B parameters, 1.5T tokens, 1e22 FLOPs."""

from __future__ import annotations

import math
import re

from moejax.errors import UserError

SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
"""Multipliers, keyed by suffix letter; lower-case letters are accepted too."""

SMALLEST, LARGEST = 1e-60, 1e60
"""Bounds of valid numbers. Within them, products and powers fit in a float64."""

ASSUMED_MFU = 0.4
"""Model FLOPs utilization (MFU) that estimates of time and cost assume, unless the user gives another."""

LONGEST = 100
"""Maximum length of a number's text. The patterns below take quadratic time."""

_WRITTEN = re.compile(
    r"([+-]?(?:[1-9]\d{0,2}(?:([, ])\d{3})(?:\2\d{3})*(?:\.\d*)?|\d[\d_]*(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)\s*([a-z]?)",
    re.IGNORECASE | re.ASCII,
)
_EMPHASIS = re.compile(r"([*_]{1,3}|`)(.+)\1")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_POWER_OF_TEN = re.compile(r"(?:(.+?)\s*[×x*·⋅]\s*|([+-]?))10\s*(?:\^|\*\*)\s*([+-]?\d+)", re.IGNORECASE | re.ASCII)
_LETTERS = "KMBT"
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


def parse(text: str) -> float:
    """Parse a number: ``"30B"``, ``"1.5T"``, ``"1e22"``, ``"4,096"``, ``"2.0×10¹⁹"``.

    Commas or spaces may separate thousands, powers of ten may be written out, and Markdown emphasis is ignored. Whole
    numbers are exact if a float can represent them.

    Raises:
      UserError: the text is not a number, has an unknown letter, or is outside ``SMALLEST`` to ``LARGEST``.
    """
    if len(text) > LONGEST:
        raise UserError(
            f"{text[:20]!r}... is not a number; it has {len(text):,} characters, and numbers have at most {LONGEST}: "
            f"shorten it."
        )
    match = _WRITTEN.fullmatch(plainly(text))
    if match is None and re.fullmatch(r"[+-]?\d+,\d+", text.strip()):
        raise UserError(f"{text!r} is not a number; commas separate thousands only, and decimals use a point.")
    if match is None or match[3].upper() not in SUFFIXES:
        raise UserError(f"{text!r} is not a number; write it as 30B, 1.5T, 1e22 or 4096.")
    value = float(re.sub(r"[,_ ]", "", match[1])) * SUFFIXES[match[3].upper()]
    if value and not SMALLEST <= abs(value) <= LARGEST:
        size = "large" if abs(value) > 1 else "small"
        raise UserError(f"{text!r} is too {size}; give 0, or a number from {SMALLEST:g} to {LARGEST:g}.")
    return value


def plainly(text: str) -> str:
    """Return a number's text in ASCII, without Markdown emphasis, and with a power of ten in exponent notation."""
    text = re.sub(r"\s", " ", text.strip())
    while emphasized := _EMPHASIS.fullmatch(text):
        text = emphasized[2].strip()
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda raised: "^" + raised[0].translate(_RAISED), text.replace("−", "-"))
    if power := _POWER_OF_TEN.fullmatch(text):
        return f"{power[1] or f'{power[2]}1'}e{power[3]}"
    return text


def parse_whole_number(text: str) -> int:
    """Parse a whole number, with the notations of ``parse``.

    Raises:
      UserError: the text is not a whole number.
    """
    value = parse(text)
    if value != int(value):
        raise UserError(f"{text!r} is not a whole number; give one, such as {math.ceil(value):,}.")
    return int(value)


def format(value: float | int, digits: int = 4) -> str:
    """Format a number for people with at most ``digits`` digits: ``30.53B``, ``14.8T``, ``2.290e+24``, ``0.35``.

    Whole numbers below 100,000 are written in full.
    """
    if not math.isfinite(value) or (value != 0 and not 1e-3 <= abs(value) < 1e15):
        return f"{value:.{digits - 1}e}" if math.isfinite(value) else str(value)
    if abs(value) < 100_000 and value == int(value):
        return str(int(value))
    power = 0
    while power < len(_LETTERS) and float(f"{abs(value) / 1000**power:.{digits}g}") >= 1000:
        power += 1
    return _plain(value / 1000**power, digits) + ("" if power == 0 else _LETTERS[power - 1])


def short(value: float, digits: int = 6) -> str:
    """Format a number with at most ``digits`` digits and no letter: ``1e20``, ``0.95``."""
    return f"{value:.{digits}g}".replace("e+0", "e").replace("e+", "e")


def format_bytes(value: float | int, digits: int = 4) -> str:
    """Format bytes in decimal units: ``10.74 TB``, ``70.27 kB``."""
    power = 0
    while power < len(_BYTES) - 1 and float(f"{abs(value) / 1000**power:.{digits}g}") >= 1000:
        power += 1
    return f"{_plain(value / 1000**power, digits)} {_BYTES[power]}"


def _plain(value: float | int, digits: int) -> str:
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def clock(seconds: float) -> str:
    """Return a duration in seconds as text: ``12:07``, ``3:12:07``, ``2 d 3:12:07``."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes}:{seconds:02d}"
    days, hours = divmod(hours, 24)
    return (f"{days} d " if days else "") + f"{hours}:{minutes:02d}:{seconds:02d}"
