"""Lines that tell tokenizers apart: digits, scripts, emoji, code, runs of whitespace, mixtures."""

from __future__ import annotations

import random
import unicodedata

PIECES = (
    *(
        "",
        " ",
        "  ",
        "   ",
        "\t",
        "\n",
        "\n\n",
        "\r\n",
        " \n ",
        "\u00a0",
        "\u3000",
        "\u2028",
        "\u200b",
    ),
    *("0", "7", "42", "1234567890", "3.14159", "1,000,000", "2026-11-29", "+33 1 23", "٣٤٥", "४२"),
    *("½", "²", "Ⅷ", "①", "\u09ea", "0x1F", "1e-5", "v2.0.1", "100%", "$9.99", "€10"),
    *("hello", "World", "don't", "we'll", "I'm", "they've", "it's", "'s", "'RE", "naïve", "café"),
    *("e\u0301", "ﬁ", "ß", "İstanbul", "ΑΒΓ αβγ", "Привет", "שלום", "مرحبا", "नमस्ते", "สวัสดี"),
    *("中文分词", "日本語のテキスト", "한국어", "繁體字", "𠮷野家", "，。！？", "「引用」"),  # noqa: RUF001
    *("😀", "👩‍👩‍👧‍👦", "🇫🇷", "👍🏽", "❤️", "🏳️‍🌈", "🧑‍💻🚀"),
    *(
        "def f(x):",
        "    return x**2",
        "if (a && b) {",
        "}\n",
        "#include <vector>",
        "SELECT * FROM t;",
    ),
    *('{"a": [1, 2]}', "<div class='x'>", "$x_{i+1}$", "C:\\path\\to", "https://e.org/a?b=c&d=1"),
    *("...", "!!!", "--", "->", "=>", "::", "//", "/*", "`x`", "~~", "___", "\\n", "\x00", "\x7f"),
    *("a" * 40, "ab" * 30, "=" * 60, " " * 33, "\t" * 9, "\n" * 5, "0" * 25, "哈" * 20),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>", "<|im_start|>user\n", "<|im_st"),
    *("\x04", "\x13", "\U000e0041", "\U000f1234", "\u0378", "\ufffd", "\ufeff", "\u202e", "\x1d"),
)


def hard_lines(count: int, seed: int = 0) -> list[str]:
    """Every piece alone, before and after a word, then random joins, up to `count` lines."""
    chooser = random.Random(seed)
    lines = [form for p in PIECES for form in (p, f"{p} word", f"word {p}", f"x{p}y")]
    while len(lines) < count:
        if chooser.random() < 0.2:
            points = (chooser.randrange(0x20, 0x30000) for _ in range(chooser.randrange(1, 12)))
            lines.append("".join(c for c in map(chr, points) if unicodedata.category(c) != "Cs"))
        else:
            joiner = chooser.choice(("", " ", "", "  ", "\n"))
            lines.append(joiner.join(chooser.choices(PIECES, k=chooser.randrange(2, 12))))
    return lines[:count]
