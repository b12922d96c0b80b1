"""Picks the captured conversations of one turn, which `aerie run` can answer anew: prompts.py PROMPTS.jsonl.gz TRACES OUT

Writes OUT/messages/N.json for each, and OUT/traces with their traces alone.
"""

import gzip
import json
import pathlib
import shutil
import sys


def main():
    prompts, traces, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    shutil.rmtree(out, ignore_errors=True)
    (out / "messages").mkdir(parents=True)
    (out / "traces").mkdir()
    shutil.copy(traces / "manifest.json", out / "traces")
    wanted = {int(path.stem.removeprefix("hs_")): path for path in traces.glob("hs_*.safetensors")}
    with gzip.open(prompts, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            messages = json.loads(line)["messages"] if number in wanted else []
            if sum(message["role"] == "user" for message in messages) == 1:
                (out / "messages" / f"{number}.json").write_text(json.dumps(messages), encoding="utf-8")
                shutil.copy(wanted[number], out / "traces")


if __name__ == "__main__":
    main()
