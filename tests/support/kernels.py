"""The kernels that every machine can run."""

from unmask.kernels import KERNELS

CPU_KERNELS = tuple(kernel for kernel in KERNELS if "cpu" in kernel.capability.devices)
