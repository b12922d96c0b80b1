"""Adds up what `aerie run --json` accepted and compares it with the walk of `aerie eval --json`: served.py WALK.json RUN.json...

Exit 1 if the engine accepted anything else than the replay of the stored states says.
"""

import json
import pathlib
import sys


def main():
    walk = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    cycles = accepted = 0
    for name in sys.argv[2:]:
        draft = json.loads(pathlib.Path(name).read_text(encoding="utf-8"))["draft"]
        cycles += draft["cycles"]
        accepted += draft["accepted"]
    print(f"served: acceptance length {1 + accepted / cycles:.4f}, {accepted} drafts accepted in {cycles} verifies")
    print(f"walk:   acceptance length {walk['walk_acceptance_length']:.4f}, {walk['accepted']} drafts accepted in {walk['cycles']} verifies")
    return 0 if (cycles, accepted) == (walk["cycles"], walk["accepted"]) else 1


if __name__ == "__main__":
    sys.exit(main())
