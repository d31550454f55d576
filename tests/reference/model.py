"""A Llama, Qwen or Gemma model as a function of Hugging Face named tensors, without cache or parallelism."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ir_schema.model import ModelSpec
from rpeg_rt.initial import initial_label, initial_tensor

Weights = dict[str, Tensor]


def shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor."""
    d, f, width = spec.hidden, spec.ffn, spec.head_width
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocabulary, d)}
    for layer in range(spec.layers):
        p = f"model.layers.{layer}."
        heads = {"q": spec.attention_heads, "k": spec.query_groups, "v": spec.query_groups}
        for name, count in heads.items():
            out[f"{p}self_attn.{name}_proj.weight"] = (count * width, d)
            if spec.qkv_bias:
                out[f"{p}self_attn.{name}_proj.bias"] = (count * width,)
        out[p + "self_attn.o_proj.weight"] = (d, spec.attention_heads * width)
        if spec.qk_norm:
            out[p + "self_attn.q_norm.weight"] = out[p + "self_attn.k_norm.weight"] = (width,)
        parts = {"mlp.": f}
        if has_experts(spec, layer):
            e = spec.experts
            parts = {f"mlp.experts.{i}.": e.ffn for i in range(e.routed)}
            parts |= {"mlp.shared_expert.": e.shared_ffn} if e.shared_ffn else {}
            out[p + "mlp.gate.weight"] = (e.routed, d)
            if e.shared_gate:
                out[p + "mlp.shared_expert_gate.weight"] = (1, d)
        for part, inner in parts.items():
            out[f"{p}{part}gate_proj.weight"] = out[f"{p}{part}up_proj.weight"] = (inner, d)
            out[f"{p}{part}down_proj.weight"] = (d, inner)
        out[p + "input_layernorm.weight"] = out[p + "post_attention_layernorm.weight"] = (d,)
        if spec.post_norms:
            out[p + "pre_feedforward_layernorm.weight"] = out[p + "post_feedforward_layernorm.weight"] = (d,)
    out["model.norm.weight"] = (d,)
    if spec.has_lm_head and not spec.tied_embeddings:
        out["lm_head.weight"] = (spec.vocabulary, d)
    if spec.has_scalar_head:
        out["value_head.weight"] = (1, d)
    return out


def initial_weights(spec: ModelSpec, name: str, seed: int, dtype: torch.dtype) -> Weights:
    """The weights that a run starts model `name` from."""
    label = initial_label(spec, name)
    assert label is not None
    return {
        n: torch.from_numpy(initial_tensor(seed, label, n, s, spec.unit_offset_norm)).to(dtype)
        for n, s in shapes(spec).items()
    }


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary embedding of x [n, heads, length, width] at positions [n, length]."""
    half = x.shape[-1] // 2
    frequency = theta ** -(torch.arange(half, dtype=x.dtype) / half)
    angle = positions[:, None, :, None].to(x.dtype) * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def hidden_states(spec: ModelSpec, w: Weights, tokens: Tensor) -> Tensor:
    """[n, length, d] after the final norm; tokens [n, length] padded with -1 on either side."""
    real = tokens >= 0
    positions = (real.cumsum(1) - 1).clamp(min=0)
    n, length = tokens.shape
    allowed = torch.ones(length, length, dtype=torch.bool).tril() & real[:, None, None, :]
    itself = torch.eye(length, dtype=torch.bool)  # padding attends to itself: no empty row
    x = w["model.embed_tokens.weight"][tokens.clamp(min=0).long()]
    if spec.scaled_embeddings:
        x = x * spec.hidden**0.5

    def norm(x, name):
        weight = w[name + ".weight"]
        return rms_norm(x, 1 + weight if spec.unit_offset_norm else weight, spec.norm_epsilon)

    for layer in range(spec.layers):
        p = f"model.layers.{layer}."
        full, theta, seen = spec.is_full_attention(layer), spec.rope_theta, allowed
        if not full:
            theta = spec.local_rope_theta or theta
            seen = seen & (positions[:, None, :, None] - positions[:, None, None, :] < spec.sliding_window)
        h = norm(x, p + "input_layernorm")

        def project(name, h=h, p=p):
            y = F.linear(h, w[f"{p}self_attn.{name}_proj.weight"], w.get(f"{p}self_attn.{name}_proj.bias"))
            y = y.view(n, length, -1, spec.head_width).transpose(1, 2)
            if spec.qk_norm and name != "v":
                y = norm(y, f"{p}self_attn.{name}_norm")
            return y

        q, k, v = (
            rotate(project("q"), positions, theta),
            rotate(project("k"), positions, theta),
            project("v"),
        )
        repeats = spec.attention_heads // spec.query_groups
        k, v = k.repeat_interleave(repeats, dim=1), v.repeat_interleave(repeats, dim=1)
        scores = (q @ k.transpose(-1, -2)) / (spec.attention_scalar or spec.head_width) ** 0.5
        scores = capped(scores, spec.attention_softcap)
        attended = scores.masked_fill(~(seen | itself), -torch.inf).softmax(-1) @ v
        y = F.linear(attended.transpose(1, 2).reshape(n, length, -1), w[p + "self_attn.o_proj.weight"])
        x = x + (norm(y, p + "post_attention_layernorm") if spec.post_norms else y)
        h = norm(x, p + ("pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm"))
        part = mixture if has_experts(spec, layer) else gated
        y = part(spec, w, p + "mlp.", h)
        x = x + (norm(y, p + "post_feedforward_layernorm") if spec.post_norms else y)
    return norm(x, "model.norm")


def has_experts(spec: ModelSpec, layer: int) -> bool:
    e = spec.experts
    return e is not None and layer in range(e.dense_layers, spec.layers) and (layer + 1) % e.every == 0


def gated(spec: ModelSpec, w: Weights, p: str, h: Tensor) -> Tensor:
    gate = F.linear(h, w[p + "gate_proj.weight"])
    gate = F.silu(gate) if spec.activation == "silu" else F.gelu(gate, approximate="tanh")
    return F.linear(gate * F.linear(h, w[p + "up_proj.weight"]), w[p + "down_proj.weight"])


def mixture(spec: ModelSpec, w: Weights, p: str, h: Tensor) -> Tensor:
    """Every expert sees every token; what a token is not routed to counts 0."""
    e = spec.experts
    likings = F.linear(h, w[p + "gate.weight"]).softmax(-1)
    likings = likings * (likings >= likings.topk(e.top_k, dim=-1).values[..., -1:])
    if e.norm_top_k:
        likings = likings / likings.sum(-1, keepdim=True)
    y = sum(likings[..., i : i + 1] * gated(spec, w, f"{p}experts.{i}.", h) for i in range(e.routed))
    if e.shared_ffn:
        shared = gated(spec, w, p + "shared_expert.", h)
        y = y + (F.linear(h, w[p + "shared_expert_gate.weight"]).sigmoid() if e.shared_gate else 1) * shared
    return y


def capped(x: Tensor, softcap: float | None) -> Tensor:
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def logits(spec: ModelSpec, w: Weights, hidden: Tensor) -> Tensor:
    """Next-token logits of hidden states [..., d]."""
    name = "model.embed_tokens.weight" if spec.tied_embeddings else "lm_head.weight"
    return capped(F.linear(hidden, w[name]), spec.logit_softcap)
