"""Compares two runs of `aerie run --stats`: demo_report.py OFF ON, each naming NAME.json (figures) and NAME.txt (the text).

Prints both speeds, the acceptance length with its definition and whether the output is identical. Exit 1 if it is not.
"""

import json
import pathlib
import sys


def load(name):
    stats = json.loads(pathlib.Path(name + ".json").read_text(encoding="utf-8"))
    return stats, pathlib.Path(name + ".txt").read_bytes()


def main():
    off, off_text = load(sys.argv[1])
    on, on_text = load(sys.argv[2])
    plain, drafted = off["decode_tokens_per_second"], on["decode_tokens_per_second"]
    draft = on["draft"]
    ratio = f" ({drafted / plain:.2f}x)" if plain > 0 else ""
    print(f"drafter off: {plain:.1f} tokens/s")
    print(f"drafter on: {drafted:.1f} tokens/s{ratio}")
    print(f"acceptance length: {draft['acceptance_length']:.2f} tokens emitted per verify, bonus token included: 1 + mean accepted")
    print(f"  ({draft['accepted']} of {draft['drafted']} drafted tokens accepted in {draft['cycles']} verifies, k = {draft['k']})")
    same = off["token_ids"] == on["token_ids"] and off_text == on_text
    print(f"identical output: {'yes' if same else 'no'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
