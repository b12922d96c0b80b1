"""An EAGLE-3 drafter's forward in numpy, in float64, one row at a time.

Written from the published descriptions (arXiv 2503.01840 and the conventions that the serving engines share; latent attention
from arXiv 2405.04434 in its absorbed form), not from Aerie's own source: it is the oracle that both of Aerie's instantiations
are compared with. Readable first, slow on purpose.

Row i pairs the target's feature of position i with token i+1 and predicts token i+2. At step s the row is fed token i+1+s and the
drafter's own output of step s-1, stands at RoPE position i+s, and attends to the step-0 keys of rows 0..i and to its own keys of
the steps 1..s.

Weights go by Aerie's canonical names: "fc", "fc_bias", "input_norm", "fc_norm.0", "layers.0.q", "layers.0.q_bias", "norm", ...
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Drafter:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    eps: float
    feature_norm: str = "none"  # "none", "concat" (input_norm), "per_tap" (fc_norm.i)
    norm_before_residual: bool = False
    norm_output: bool = False  # feed rms(z, norm) back instead of z
    weights: dict = field(default_factory=dict)
    embedding: np.ndarray = None  # [V, hidden], the drafter's own or the target's
    head: np.ndarray = None  # [Vd, hidden]
    draft_to_target: np.ndarray = None  # [Vd] absolute target ids
    layers: int = 1
    layout: str = "input_norm"  # of the later layers: "hidden_norm" (A), "input_norm" (B), "concat" (C)
    has_fc: bool = True
    feature_normed_twice: bool = False
    head_norm: bool = True
    logit_scale: float = 1.0
    rope_dim: int = 0  # 0: the whole head
    rope_interleaved: bool = False
    rope_scaling: dict = None  # the keys of a Hugging Face config
    attention_scale: float = 1.0
    window: int = 0  # rows that a row sees, itself included; 0: all
    mla: dict = None  # q_rank (0: none), kv_rank, nope_dim, v_dim
    latent_eps: float = 1e-6


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def linear(weights, name, x):
    y = weights[name] @ x
    return y + weights[name + "_bias"] if name + "_bias" in weights else y


def inverse_frequencies(dim, theta, scaling):
    """(frequencies [dim/2], factor on cosine and sine)."""
    i = np.arange(dim // 2)
    f = theta ** (-2.0 * i / dim)
    kind = scaling["rope_type"] if scaling else "default"
    if kind == "default":
        return f, 1.0
    factor = scaling["factor"]
    if kind == "linear":
        return f / factor, 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        a = np.clip((original * f / (2 * np.pi) - low) / (high - low), 0, 1)
        return f * ((1 - a) / factor + a), 1.0
    assert kind == "yarn", kind

    def correction(rotations):
        return dim * np.log(original / (2 * np.pi * rotations)) / (2 * np.log(theta))

    low, high = correction(scaling.get("beta_fast", 32)), correction(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((i - low) / (high - low), 0, 1)
    return f * (1 - ramp) + f / factor * ramp, scaling["attention_factor"]


def rotate(drafter, vector, position):
    """RoPE on the first values of one head."""
    dim = drafter.rope_dim or vector.size
    f, factor = inverse_frequencies(dim, drafter.rope_theta, drafter.rope_scaling)
    turn = factor * np.exp(1j * position * f)
    out = vector.copy()
    if drafter.rope_interleaved:
        pairs = (vector[0:dim:2] + 1j * vector[1:dim:2]) * turn
        out[0:dim:2], out[1:dim:2] = pairs.real, pairs.imag
    else:
        pairs = (vector[: dim // 2] + 1j * vector[dim // 2 : dim]) * turn
        out[:dim] = np.concatenate([pairs.real, pairs.imag])
    return out


def softmax(scores):
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def fuse(drafter, feature):
    """h of step 0 from one position's concatenated taps."""
    w = drafter.weights
    if drafter.feature_norm == "concat":
        feature = rms_norm(feature, w["input_norm"], drafter.eps)
    elif drafter.feature_norm == "per_tap":
        taps = sum(name.startswith("fc_norm.") for name in w)
        parts = np.split(feature, taps)
        feature = np.concatenate([rms_norm(part, w[f"fc_norm.{i}"], drafter.eps) for i, part in enumerate(parts)])
    return linear(w, "fc", feature) if drafter.has_fc else feature


def attend(drafter, w, x, position, past):
    """Grouped-query attention of one row. Returns (heads side by side, what later rows see of this one)."""
    d, group = drafter.head_dim, drafter.heads // drafter.kv_heads
    q = linear(w, "q", x).reshape(drafter.heads, d)
    k = linear(w, "k", x).reshape(drafter.kv_heads, d)
    v = linear(w, "v", x).reshape(drafter.kv_heads, d)
    if "q_norm" in w:
        q = np.stack([rms_norm(head, w["q_norm"], drafter.eps) for head in q])
        k = np.stack([rms_norm(head, w["k_norm"], drafter.eps) for head in k])
    q = np.stack([rotate(drafter, head, position) for head in q])
    k = np.stack([rotate(drafter, head, position) for head in k])
    seen = (past + [(k, v)])[-drafter.window :]
    attended = []
    for head in range(drafter.heads):
        keys = np.stack([pair[0][head // group] for pair in seen])
        values = np.stack([pair[1][head // group] for pair in seen])
        attended.append(softmax(keys @ q[head] / np.sqrt(d) * drafter.attention_scale) @ values)
    return np.concatenate(attended), (k, v)


def attend_latent(drafter, w, x, position, past):
    """Latent attention of one row: the queries go to the latents, no head's keys or values are ever made."""
    m = drafter.mla
    nope, rank, rope = m["nope_dim"], m["kv_rank"], drafter.head_dim - m["nope_dim"]
    if m["q_rank"]:
        q = linear(w, "q_b", rms_norm(linear(w, "q_a", x), w["q_a_norm"], drafter.latent_eps))
    else:
        q = linear(w, "q", x)
    q = q.reshape(drafter.heads, drafter.head_dim)
    both = linear(w, "kv_a", x)
    latent, k_rope = rms_norm(both[:rank], w["kv_a_norm"], drafter.latent_eps), rotate(drafter, both[rank:], position)
    up = w["kv_b"].reshape(drafter.heads, nope + m["v_dim"], rank)
    seen = (past + [(latent, k_rope)])[-drafter.window :]
    latents, ropes = np.stack([pair[0] for pair in seen]), np.stack([pair[1] for pair in seen])
    attended = []
    for head in range(drafter.heads):
        scores = latents @ (up[head, :nope].T @ q[head, :nope]) + ropes @ rotate(drafter, q[head, nope:], position)
        weights = softmax(scores / np.sqrt(nope + rope) * drafter.attention_scale)
        attended.append(up[head, nope:] @ (weights @ latents))
    return np.concatenate(attended), (latent, k_rope)


def layer(drafter, j, e, h, position, past):
    """One row through layer j. Returns (its output, what later rows see of this one)."""
    prefix = f"layers.{j}."
    w = {name.removeprefix(prefix): value for name, value in drafter.weights.items() if name.startswith(prefix)}
    residual = h
    if j > 0 and drafter.layout == "hidden_norm":
        x = rms_norm(h, w["hidden_norm"], drafter.eps)
    elif j > 0 and drafter.layout == "input_norm":
        x = rms_norm(h, w["input_layernorm"], drafter.eps)
    else:
        feature = rms_norm(h, w["input_layernorm"], drafter.eps) if j == 0 and drafter.feature_normed_twice else h
        normed_h = rms_norm(feature, w["hidden_norm"], drafter.eps)
        x = np.concatenate([rms_norm(e, w["input_layernorm"], drafter.eps), normed_h])
        if j == 0 and drafter.norm_before_residual:
            residual = normed_h
    attended, own = (attend_latent if drafter.mla else attend)(drafter, w, x, position, past)
    y = residual + linear(w, "o", attended)
    u = rms_norm(y, w["post_attention_layernorm"], drafter.eps)
    return y + linear(w, "down", silu(linear(w, "gate", u)) * linear(w, "up", u)), own


def step(drafter, e, h, position, past):
    """One row. `past` has, for each earlier row that it sees, a list with what each layer kept of that row. Returns (head input,
    feedback, what the layers keep of this row)."""
    own = []
    for j in range(drafter.layers):
        h, kept = layer(drafter, j, e, h, position, [row[j] for row in past])
        own.append(kept)
    normed = rms_norm(h, drafter.weights["norm"], drafter.eps) if "norm" in drafter.weights else None
    return normed if drafter.head_norm else h, normed if drafter.norm_output else h, own


def unroll(drafter, tokens, features, rows, steps):
    """head_input and feedback [steps, len(rows), H], logits [steps, len(rows), Vd], predictions [steps, len(rows)] (target ids)."""
    step0, cache = [], []
    for i in range(max(rows) + 1):
        head_input, feedback, own = step(drafter, drafter.embedding[tokens[i + 1]], fuse(drafter, features[i]), i, cache)
        step0.append((head_input, feedback))
        cache = cache + [own]
    out = np.zeros((steps, len(rows), drafter.hidden)), np.zeros((steps, len(rows), drafter.hidden))
    for column, i in enumerate(rows):
        head_input, feedback = step0[i]
        seen = cache[: i + 1]
        out[0][0, column], out[1][0, column] = head_input, feedback
        for s in range(1, steps):
            head_input, feedback, own = step(drafter, drafter.embedding[tokens[i + 1 + s]], feedback, i + s, seen)
            seen = seen + [own]
            out[0][s, column], out[1][s, column] = head_input, feedback
    logits = out[0] @ drafter.head.T * drafter.logit_scale
    return out[0], out[1], logits, drafter.draft_to_target[logits.argmax(-1)]
