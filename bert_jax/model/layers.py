"""The parts every block is made of: parameters with named axes, products, LayerNorm, dropout.

Shape suffixes: B batch, L length, Q tokens of a row whose states are computed, D hidden size, F FFN
width, H heads, K head columns, P masked positions, E examples per row, V padded vocabulary.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from bert_jax.model.config import Activation, Architecture, Dtype, Execution
from bert_jax.model.elementwise import gelu_tanh, layer_norm
from bert_jax.model.initial import Constant, Initial, TruncatedNormal
from bert_jax.parallel.gradient_sum import device_shares, summed_shares
from bert_jax.parallel.rules import LogicalAxes, constrain, whole

Array = jax.Array

ACTIVATIONS: Final[dict[Activation, Callable[[Array], Array]]] = {
    "gelu_tanh": gelu_tanh,
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
}


def param(shape: Sequence[int], axes: LogicalAxes, initial: Initial) -> nnx.Param:
    """Returns a float32 parameter: its shape, its logical axes and how it starts, no numbers."""
    abstract = jax.ShapeDtypeStruct(tuple(shape), jnp.float32)
    return nnx.Param(abstract, logical=axes, initial=initial)


class ParamUse(NamedTuple):
    """How a parameter, stored in float32 and split over devices, takes part in a computation."""

    stored: LogicalAxes  # what its axes mean
    gradient_dtype: Dtype  # in which its gradient is summed over devices

    @property
    def axes(self) -> LogicalAxes:
        """What the axes mean where it is used."""
        return whole(self.stored)


class Dense(nnx.Module):
    """An affine map from the last axes of an activation to axes of its own.

    Parameters are float32; the product is computed in the execution's dtype. The kernel is a
    matrix, [inputs, outputs], whatever axes it maps: with 64 columns of a head as its last axis a
    TPU would keep it transposed, and turn it round for every use and every update.
    """

    def __init__(
        self,
        shape: Sequence[int],
        axes: LogicalAxes,
        *,
        outputs: int,
        architecture: Architecture,
        execution: Execution,
    ) -> None:
        """Gives the kernel and the bias their shapes.

        Args:
            shape: sizes of what is mapped, output axes last.
            axes: the logical axes of these; the first of the inputs and of the outputs are the
                kernel's.
            outputs: how many of the last axes are outputs, and so have a bias.
            architecture: gives the deviation of the kernel's first values.
            execution: gives the dtype of the product.
        """
        self.inputs = len(shape) - outputs
        sizes = math.prod(shape[: self.inputs]), math.prod(shape[self.inputs :])
        normal = TruncatedNormal(architecture.initializer_range)
        self.kernel = param(sizes, (axes[0], axes[self.inputs]), normal)
        self.use = ParamUse((axes[0], axes[self.inputs]), execution.gradient_dtype)
        self.bias = param(shape[-outputs:], axes[-outputs:], Constant(0.0))
        self.dtype: Dtype = execution.dtype

    def __call__(self, x: Array) -> Array:
        """Returns the map of `x` [..., inputs] as [..., outputs], in the execution's dtype."""
        return self.with_bias(self.without_bias(x))

    def without_bias(self, x: Array) -> Array:
        """Returns the product alone, [..., outputs] with one axis for all of them."""
        x = x.astype(self.dtype)
        flat = x.reshape(*x.shape[: x.ndim - self.inputs], -1)
        return project(flat, self.kernel[...], use=self.use)

    def with_bias(self, y: Array) -> Array:
        """Returns a product with the bias added."""
        y = y.reshape(*y.shape[:-1], *self.bias.shape)
        return y + spread(self.bias[...], y, of=self)


def spread(bias: Array, y: Array, *, of: Dense) -> Array:
    """Returns a bias over the rows of `y`, in a map's dtype.

    Cast after it is spread: its gradient is then summed over the rows in the dtype of gradients.
    """
    return jnp.broadcast_to(bias.astype(of.use.gradient_dtype), y.shape).astype(of.dtype)


def project(x: Array, kernel: Array, *, use: ParamUse) -> Array:
    """Returns ``x · kernel`` for `x` [..., I] and a kernel [I, O].

    As a product of two matrices: a gradient that contracts batch and length as two axes makes
    XLA's CPU compiler transpose its operands element by element, GELU's backward pass and all,
    which took four tenths of the time of the FFN.
    """
    y: Array = product(x.reshape(-1, x.shape[-1]), kernel, x.dtype, use)
    return y.reshape(*x.shape[:-1], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def product(rows: Array, kernel: Array, dtype: DTypeLike, use: ParamUse) -> Array:
    """Returns ``rows · kernel``, computed in the rows' dtype.

    The kernel's gradient leaves its product in a dtype of its own. In that of the rows, where JAX
    would have it, the sum over the devices that share the rows would be taken in bfloat16: the
    compiler sums what a product gives, and casts afterwards.

    `rows`: [N, I]; `kernel`: float32 [I, O]; `dtype`: of the result.
    """
    return _product_forward(rows, kernel, dtype, use)[0]


def _product_forward(
    rows: Array, kernel: Array, dtype: DTypeLike, use: ParamUse
) -> tuple[Array, tuple[Array, Array]]:
    kernel = placed(kernel, rows.dtype, use.axes)
    return jnp.matmul(rows, kernel, preferred_element_type=dtype), (rows, kernel)


def _product_backward(
    dtype: DTypeLike, use: ParamUse, kept: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    del dtype
    rows, kernel = kept
    of_rows = jnp.matmul(gradient, kernel.T, preferred_element_type=rows.dtype)
    return of_rows, gradient_of_kernel(rows, gradient, use)


product.defvjp(_product_forward, _product_backward)


def gradient_of_kernel(rows: Array, gradient: Array, use: ParamUse) -> Array:
    """Returns the gradient of a kernel [I, O], float32, as `product` has it.

    `rows`: [N, I], what is multiplied; `gradient`: [N, O], of the product.
    """

    def share(rows: Array, gradient: Array) -> Array:
        return jax.lax.dot_general(
            rows, gradient, (((0,), (0,)), ((), ())), preferred_element_type=use.gradient_dtype
        )

    inputs, outputs = use.axes
    arguments = ("batch", inputs), ("batch", outputs)
    shares = device_shares(share, rows, gradient, arguments=arguments, axes=use.axes)
    return summed_shares(shares, use.stored).astype(jnp.float32)


def placed(param: Array, dtype: DTypeLike, axes: LogicalAxes) -> Array:
    """Returns a parameter as it is used; cast first, so that half the bytes are gathered."""
    if param.dtype != dtype:
        # Once, and not anew for every tile of a product, which is what becomes of it inside one.
        param = jax.lax.optimization_barrier(param.astype(dtype))
    return constrain(param, *axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def project_each(x: Array, kernels: tuple[Array, ...], use: ParamUse) -> tuple[Array, ...]:
    """Returns ``x · kernel`` for each kernel, as arrays of their own.

    Backwards it is one product of all gradients, stacked in front. So is the gradient of `x` a
    single sum, which a tensor axis takes over devices once and not for every kernel.

    `x`: [B, L, I]; `kernels`: float32 [I, O] each.
    """
    return _project_each_forward(x, kernels, use)[0]


def _project_each_forward(
    x: Array, kernels: tuple[Array, ...], use: ParamUse
) -> tuple[tuple[Array, ...], tuple[Array, tuple[Array, ...]]]:
    kernels = tuple(placed(kernel, x.dtype, use.axes) for kernel in kernels)
    rows = x.reshape(-1, x.shape[-1])
    each = (jnp.matmul(rows, kernel, preferred_element_type=x.dtype) for kernel in kernels)
    return tuple(y.reshape(*x.shape[:-1], -1) for y in each), (x, kernels)


def _project_each_backward(
    use: ParamUse, kept: tuple[Array, tuple[Array, ...]], gradients: tuple[Array, ...]
) -> tuple[Array, tuple[Array, ...]]:
    x, kernels = kept
    rows = x.reshape(-1, x.shape[-1])
    stacked = jnp.stack(gradients).reshape(len(kernels), len(rows), -1)
    of_rows = jnp.einsum("sno,sio->ni", stacked, jnp.stack(kernels), preferred_element_type=x.dtype)

    def share(rows: Array, stacked: Array) -> Array:
        return jnp.einsum("ni,sno->sio", rows, stacked, preferred_element_type=use.gradient_dtype)

    inputs, outputs = use.axes
    arguments = ("batch", inputs), ("rest", "batch", outputs)
    shares = device_shares(share, rows, stacked, arguments=arguments, axes=("rest", *use.axes))
    # One by one: cut along an axis that is not the first, a sum would be an all-reduce after all.
    of_kernels = (summed_shares(shares[:, at], use.stored) for at in range(len(kernels)))
    return of_rows.reshape(x.shape), tuple(each.astype(jnp.float32) for each in of_kernels)


project_each.defvjp(_project_each_forward, _project_each_backward)


class LayerNorm(nnx.Module):
    """Layer normalisation over the last axis, its statistics in float32 (arXiv 1607.06450)."""

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        width = (architecture.hidden_size,)
        # Not "embed": splitting vectors of a few hundred numbers costs more than it saves.
        self.scale = param(width, ("hidden",), Constant(1.0))
        self.bias = param(width, ("hidden",), Constant(0.0))
        self.eps = architecture.layer_norm_eps
        self.dtype = execution.dtype
        self.fused = execution.norm == "fused"

    def __call__(self, x: Array) -> Array:
        """Returns `x` [..., D] normalised, in the execution's dtype."""
        return layer_norm(x, self.scale[...], self.bias[...], self.eps, self.dtype)


@jax.custom_vjp
def add_bias(y: Array, bias: Array) -> Array:
    """Returns ``y + bias`` for `y` [N, V] and `bias` [V].

    The bias's gradient is a product with ones: the sum over rows that stands there else takes XLA's
    CPU compiler as long as the projection itself where V is a vocabulary. With eight rows of them,
    since a TPU's compiler makes a sum of one.
    """
    return y + bias


def _add_bias_forward(y: Array, bias: Array) -> tuple[Array, None]:
    return add_bias(y, bias), None


def _add_bias_backward(_: None, gradient: Array) -> tuple[Array, Array]:
    ones = jnp.ones((8, gradient.shape[0]), gradient.dtype)
    return gradient, (ones @ gradient)[0]


add_bias.defvjp(_add_bias_forward, _add_bias_backward)


def gather_positions(
    x_BLD: Float[Array, "batch length width"], positions_BQ: Int[Array, "batch queries"]
) -> Float[Array, "batch queries width"]:
    """Returns what an array has at the given positions of each row."""
    return jnp.take_along_axis(x_BLD, positions_BQ[..., None], axis=1)


def subkey(key: Array | None, index: int) -> Array | None:
    """Returns the `index`-th key derived from `key`; None stays None."""
    return None if key is None else jax.random.fold_in(key, index)
