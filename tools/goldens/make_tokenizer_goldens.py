#!/usr/bin/env python3
"""Makes tests/text/data/tokenizer_goldens.jsonl: what the PyPI package `tokenizers` makes of some thousand texts.

Usage: make_tokenizer_goldens.py MODEL.gguf [OUTPUT]      (pip install tokenizers gguf)

The vocabulary and merges are the model's; the pre-tokenizers are the published ones of each family:
  smollm     Digits(individual_digits=True), then ByteLevel(use_regex=True)
  gpt2       ByteLevel(use_regex=True)
  llama-bpe  Split(regex), then ByteLevel(use_regex=False); whole words of the vocabulary before merges
  qwen2      Split(regex), then ByteLevel(use_regex=False)
Lines after the header: {"p": pre-tokenizer, "t": text or "x": hex of bytes or "r": [unit, times], "i": ids of plain text,
"s": ids with special spellings read, if other}, and {"d": ids, "t": their text}. Long id lists of "r" lines are run-length
coded: "q": [[id, times], ...].
"""

import importlib.metadata
import itertools
import json
import random
import sys
import unicodedata

import gguf
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

SEED = 20240611
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
QWEN = LLAMA.replace(r"\p{N}{1,3}", r"\p{N}")
DEFAULT_OUTPUT = "tests/text/data/tokenizer_goldens.jsonl"

WORDS = """the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other into
has more her two like him see time could no make than first been its who now people my made over did down only way find use
may water long little very after words called just where most know speculative decoding acceptance tokenizer Unicode naïve
café résumé Zürich tensor kernel don't I'll we've they're it's you'd o'clock rock'n'roll 3rd 42 1999 3.14159 1,000,000 0x7fff
HTTP README.md e-mail C++ foo_bar camelCase snake_case https://example.org/a?b=c&d=1 user@example.org""".split()
PUNCTUATION = [".", ",", "!", "?", ";", ":", " -", " --", "...", "…", " —", "\"", "'", "’", ")", " (", "]", "}", "/", "\\", "%"]
SCRIPTS = [
    "机器学习是人工智能的一个分支。", "今天天气很好，我们去公园散步吧！", "東京は日本の首都です。", "カタカナとひらがな、漢字。", "안녕하세요, 세계! 반갑습니다.",
    "Привет, как дела? Всё хорошо.", "Γειά σου Κόσμε, τι κάνεις;", "مرحبا بالعالم، كيف حالك؟", "שלום עולם, מה שלומך?",
    "नमस्ते दुनिया, आप कैसे हैं?", "สวัสดีชาวโลก ยินดีที่ได้รู้จัก", "Xin chào thế giới, bạn khoẻ không?", "გამარჯობა მსოფლიო", "Բարեւ աշխարհ",
    "வணக்கம் உலகம்", "ሰላም ልዑል", "Straße, Größe, Übermut, ÄÖÜ", "L'été à la plage, ça va?", "¿Cómo estás? ¡Muy bien!", "Łódź, żółć, gęś",
]
EMOJI = ["😀", "🤖", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇨🇭", "❤️", "☃", "🧑🏿‍🚀", "1️⃣", "🫠", "♟️", "😶‍🌫️", "\u200d", "\ufe0f"]
CODE = [
    "def {a}({b}, {c}=None):\n    return {b} + {c}[{n}]\n", "for (int {a} = 0; {a} < {n}; ++{a}) {{\n\t{b}[{a}] *= {c};\n}}\n",
    "#include <{a}.h>\nint main() {{ return {n}; }}", '{{"{a}": [{n}, {n}.5, "{b}"], "{c}": null}}', "SELECT {a}, {b} FROM {c} WHERE id={n};",
    "<div class=\"{a}\">{b}<br/>&amp;{c}</div>", "$ {a} --{b}={n} | grep -v '{c}' > /tmp/{a}.{n}", "let {a} = |{b}| {{ {b}.{c}()? }};",
    "\\begin{{{a}}}\n  x_{{{n}}}^2 + \\alpha = {b}\n\\end{{{a}}}", "- [ ] {a}\n  - **{b}** `{c}`\n\n# {n}. {a}\n", "{a}::{b}<{c}, {n}>&& operator->();",
    "    if {a} != {b}:\r\n        raise {c}Error('{n}')\r\n", "x={n};y=~x&0b{n}|{a}>>{n}//{b}",
]
SPACES = [" ", " ", " ", "\n", "\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "\u2003", "\u0085", "\u180e", "\u2028", "\u200b", "\x0b", "\x0c", "\x1c", "\x1f"]
DIGITS = ["0", "1", "23", "456", "7890", "٣", "४२", "Ⅷ", "²", "½", "１２３", "𝟘", "〇", "一", "①", "3.14", "1,000", "-5", "1e9", "0xFF"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'\u017f", "'x", "''s", "' s", "’s", "'sa", "'rex", "'l"]


def sentence(rng):
    out = ""
    for _ in range(rng.randint(1, 12)):
        word = rng.choice(WORDS)
        word = rng.choice([word, word, word, word.capitalize(), word.upper()])
        out += rng.choice([" ", " ", " ", "", "  "]) + word if out else word
        if rng.random() < 0.25:
            out += rng.choice(PUNCTUATION)
    return out


def slices(rng, pool, parts):
    out = ""
    for _ in range(rng.randint(1, parts)):
        text = rng.choice(pool)
        start = rng.randrange(len(text))
        out += text[start:start + rng.randint(1, 12)] + rng.choice(["", " ", "\n", ""])
    return out


def joined(rng, pools, longest):
    return "".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, longest)))


def random_unicode(rng, assigned):
    return "".join(chr(rng.choice(assigned)) for _ in range(rng.randint(1, 12)))


def invalid_bytes(rng):
    kinds = [b"\xff", b"\xc0\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\x80", b"\xf4\x90\x80\x80", b"\xe0\x9f\xbf", b"\xc3", b"\xf8\x88\x80\x80"]
    good = [b"abc", b" the", "é".encode(), "😀".encode(), b"\n", b" 12", "中".encode()]
    return b"".join(rng.choice(rng.choice([kinds, good])) for _ in range(rng.randint(1, 8)))


def texts(rng, specials):
    """Groups of distinct texts: name -> how many and a maker."""
    assigned = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    low = [c for c in assigned if c < 0x800]
    ascii_soup = [chr(c) for c in range(32, 127)] + [chr(c) for c in range(32)]
    pieces = [s[:k] for s in specials for k in (1, 2, len(s) - 1, len(s))]
    code = lambda: rng.choice(CODE).format(a=rng.choice(["foo", "i", "userName", "x_1", "π"]), b=rng.choice(["bar", "j", "値", "_"]),
                                           c=rng.choice(["baz", "K", "Value"]), n=rng.choice([0, 7, 42, 1000, 65536]))
    return {
        "english": (500, lambda: sentence(rng)),
        "code": (300, code),
        "scripts": (300, lambda: slices(rng, SCRIPTS, 4)),
        "emoji": (150, lambda: joined(rng, [EMOJI, EMOJI, [" ", "a", "!"]], 8)),
        "marks": (150, lambda: "".join(rng.choice("aeiounAEIOUक가ا ") + "".join(chr(rng.randint(0x300, 0x36f)) for _ in range(rng.randint(0, 3)))
                                        for _ in range(rng.randint(1, 8)))),
        "spaces": (250, lambda: joined(rng, [SPACES, SPACES, ["a", "1", ".", "é", "中", "'s"]], 10)),
        "digits": (150, lambda: joined(rng, [DIGITS, DIGITS, ["a", " ", ".", "\n"]], 8)),
        "contractions": (150, lambda: joined(rng, [CONTRACTIONS, ["a", "I", " ", "it", "9", "\n", "é"]], 6)),
        "specials": (250, lambda: joined(rng, [pieces, specials, [" ", "a", "user\n", "<", "|", ">", "\n"]], 5)),
        "ascii": (200, lambda: joined(rng, [ascii_soup], 16)),
        "unicode": (200, lambda: random_unicode(rng, rng.choice([assigned, low]))),
        "runs": (150, lambda: rng.choice([" ", "a", "A", "\n", "\t", "0", "9", "-", "=", "é", "中", "😀", "\u0301", ".", "'", "\r\n", "ab", " a"]) * rng.randint(2, 70)),
    }


def make_tokenizer(pre, vocabulary, merges, specials):
    split = lambda pattern: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    result = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    result.pre_tokenizer = {"smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
                            "gpt2": byte_level, "llama-bpe": split(LLAMA), "qwen2": split(QWEN)}[pre]
    result.decoder = decoders.ByteLevel()
    if specials:
        result.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    return result


def main():
    rng = random.Random(SEED)
    fields = gguf.GGUFReader(sys.argv[1]).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    specials = [t for t, kind in zip(tokens, types) if kind == 3]
    # Without the control tokens in its vocabulary the plain tokenizer cannot but spell them.
    text_vocabulary = {t: i for i, t in enumerate(tokens) if types[i] != 3}
    vocabulary = {t: i for i, t in enumerate(tokens)}

    lines = [{"versions": {"tokenizers": tokenizers.__version__, "gguf": importlib.metadata.version("gguf"), "unicodedata": unicodedata.unidata_version}, "seed": SEED}]
    for pre, share in (("smollm", 1.0), ("gpt2", 0.1), ("llama-bpe", 0.12), ("qwen2", 0.12)):
        plain = make_tokenizer(pre, text_vocabulary, merges, [])
        special = make_tokenizer(pre, vocabulary, merges, specials)
        for name, (count, make) in texts(rng, specials).items():
            seen = set()
            for _ in range(20 * count):
                if len(seen) >= round(count * share):
                    break
                text = make()
                if not text or text in seen:
                    continue
                seen.add(text)
                line = {"p": pre, "t": text, "i": plain.encode(text).ids}
                with_special = special.encode(text).ids
                if with_special != line["i"]:
                    line["s"] = with_special
                lines.append(line)
        for _ in range(round(150 * share)):
            data = invalid_bytes(rng)
            lines.append({"p": pre, "x": data.hex(), "i": plain.encode(data.decode("utf-8", errors="replace")).ids})
        for unit, times in ((" ", 3000), ("a", 5000), ("\n", 2500), ("=", 4096), ("7", 1000), ("é", 2000), ("中", 1500), (" a", 2000), ("x\n", 1000), ("<|im_end|>", 300)):
            ids = plain.encode(unit * times).ids
            lines.append({"p": pre, "r": [unit, times], "q": [[k, len(list(g))] for k, g in itertools.groupby(ids)]
                          if len(set(ids)) < 4 else [[k, 1] for k in ids]})
            if len(lines[-1]["q"]) > 500:
                lines.pop()
    decoder = make_tokenizer("smollm", vocabulary, merges, specials)
    partial = [i for i, t in enumerate(tokens) if types[i] == 1 and "\ufffd" in decoder.decode([i])]
    for _ in range(150):
        ids = [rng.choice([rng.randrange(len(tokens)), rng.choice(partial), rng.randrange(300)]) for _ in range(rng.randint(1, 8))]
        lines.append({"d": ids, "t": decoder.decode(ids, skip_special_tokens=False)})

    with open(sys.argv[2] if len(sys.argv) > 2 else DEFAULT_OUTPUT, "w", encoding="utf-8") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(lines)} lines, smollm {sum(l.get('p') == 'smollm' for l in lines)}")


if __name__ == "__main__":
    main()
