"""Declare kernels, compile them with numba, and cache the compiled code on disk.

Only this module imports the compiler.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import platformdirs
from llvmlite import binding as llvm  # type: ignore[import-untyped]
from numba.core import types
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, compile_result
from numba.core.dispatcher import Dispatcher
from numba.core.environment import lookup_environment
from numba.core.typing.templates import infer_getattr, make_overload_method_template
from numba.core.typing.typeof import typeof_impl
from numba.extending import overload

# Numba's own classes are not typed.
# mypy: disable-error-code="no-untyped-call, no-any-return"

P = ParamSpec("P")
R = TypeVar("R")

Int = int | np.int64
"""Type of a kernel's integer arguments and results."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]
"""Types of kernels' array arguments; a kernel's docstring gives the shapes and, for records, the row type."""

Record = Any
"""A row of a record array; mypy does not know the types of the row's fields."""

# Kernels allocate nothing, so `_nrt` switches off numba's reference counting. It would take half of the run time,
# because a site's state is a tuple of arrays, and each call would count references to all arrays. Leaving out wrappers
# for calls from C and, for private kernels, also from Python saves a tenth of the compile time.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


# Numba compiles each function to machine code together with all functions that it calls, so the innermost of ten levels
# would be optimised ten times. Kernels that other kernels call therefore stay LLVM bitcode, which is optimised and
# compiled to machine code once, in the kernel that Python calls.


class _Part(JITCodeLibrary):
    """The bitcode of a kernel, which other kernels link in order to call it; a part has no machine code of its own."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalized = True

    def _get_module_for_linking(self) -> Any:
        self._ensure_finalized()
        return self._final_module

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        return self.serialize_using_bitcode()

    @classmethod
    def of_bitcode(cls, codegen: Any, name: str, bitcode: bytes) -> _Part:
        """Load a part from bitcode returned by `serialize_using_bitcode`."""
        part = cls(codegen, name)
        part._final_module = llvm.parse_bitcode(bitcode)
        part._finalize_final_module()
        return part

    @property
    def codegen(self) -> Any:
        return _NoEnvironments


class _NoEnvironments:
    """A code generator that ignores environments, because the kernel that links a part sets its environment."""

    @staticmethod
    def set_env(env_name: str, env: object) -> None:
        pass


class _Apart(_Part):
    """A part that is never inlined."""

    def _finalize_final_module(self) -> None:
        for function in self._final_module.functions:
            # Mark only the part's own function, because the functions that it calls are no longer external.
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.add_function_attribute("noinline")
        super()._finalize_final_module()


class _Whole(JITCodeLibrary):
    """A kernel that Python calls, compiled to machine code together with all parts that it links."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            # Only this kernel calls the linked parts. Make the parts internal, so that LLVM can drop the unused ones
            # of their hundreds of arguments.
            if not function.is_declaration and function.linkage == llvm.Linkage.linkonce_odr:
                function.linkage = "internal"
        super()._optimize_final_module()

    def _finalize_specific(self) -> None:
        super()._finalize_specific()
        for value in self._final_module.global_variables:
            environment = lookup_environment(value.name) if value.name.startswith("_ZN08NumbaEnv") else None
            if environment is not None:
                self.codegen.set_env(value.name, environment)


class _Compiler(Compiler):
    """Numba's compiler, with the type of code library that a subclass sets."""

    library: type[JITCodeLibrary]

    def compile_extra(self, func: Any) -> Any:
        self.state.library = self.library(self.state.targetctx.codegen(), func.__qualname__)
        self.state.library.enable_object_caching()
        return super().compile_extra(func)


class _PartCompiler(_Compiler):
    library = _Part


class _ApartCompiler(_Compiler):
    library = _Apart


class _WholeCompiler(_Compiler):
    library = _Whole


class _ByName:
    """Locates the cached code of a kernel by the name of its module, independent of the path of the module's file.

    The cache folder depends on a hash of the kernel sources (`_stamp`), so a user's checkouts and installations with
    the same sources share compiled code. Numba's own locators depend on the path of the file.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._folder = Path(cast("Any", numba.config).CACHE_DIR) / function.__module__
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., object], file: str) -> _ByName | None:
        """Return the locator, or None if the cache folder is not writable; numba then tries the next locator."""
        locator = cls(function)
        try:
            locator.ensure_cache_path()
        except OSError:
            return None
        return locator

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return str(self._line)


class _WholeCacheImpl(CompileResultCacheImpl):
    """The cache of compiled kernels, which tries the locator `_ByName` first."""

    _locator_classes: list[Any] = [_ByName, *CompileResultCacheImpl._locator_classes]  # noqa: RUF012 - as numba declares it


class _Index(IndexDataCacheFile):
    """An index that maps the argument types of a kernel to files of compiled code.

    Numba numbers the files. Two processes that write an index at once would use the same number, and one could load the
    other's code for the wrong argument types. Here each file has a unique name.
    """

    def save(self, key: object, data: object) -> None:
        kept = self._load_index()
        if key not in kept:
            kept[key] = f"{self._index_name}.{uuid.uuid4().hex}.nbc"
            self._save_index(kept)
        self._save_data(kept[key], data)


class _PromptCache(FunctionCache):
    """A cache that loads compiled code without preparing a compilation.

    Numba's cache first registers numba's implementations of numpy and scipy, which takes a second. Loading machine code
    takes only 20 ms and needs none of these. A compilation registers them itself.

    Numba keeps one index per function for all argument types. Reading that index imports the classes of every
    discipline, and concurrent writes by two processes lose an entry. Here each set of argument classes has an index.
    """

    _impl_class = _WholeCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> object:
        self._cache_file = self._index_for(sig)
        with self._guard_against_spurious_io_errors():
            try:
                return self._load_overload(sig, target_context)
            except (ImportError, AttributeError):
                # The index has code for a class that no longer exists, e.g. in a user's discipline.
                self.flush()
                return None

    def save_overload(self, sig: Any, data: object) -> None:
        self._cache_file = self._index_for(sig)
        try:
            super().save_overload(sig, data)
        except (ImportError, AttributeError):
            # Another process has added code for a class that does not exist here.
            self.flush()
            super().save_overload(sig, data)

    def _index_for(self, arguments: tuple[Any, ...]) -> _Index:
        """Return the index for this combination of named tuple classes among the arguments."""
        tuples: list[Any] = [kind for kind in arguments if isinstance(kind, types.BaseNamedTuple)]
        classes = [kind.instance_class for kind in tuples]
        names = " ".join(f"{tuple_class.__module__}.{tuple_class.__qualname__}" for tuple_class in classes)
        apart = f"-{hashlib.sha256(names.encode()).hexdigest()[:16]}" if names else ""
        return _Index(self._cache_path, f"{self._impl.filename_base}{apart}", self._impl.locator.get_source_stamp())

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return *super()._index_key(sig, codegen), _foreign_sources(self._py_func, sig)


def _foreign_sources(function: Callable[..., object], arguments: tuple[Any, ...]) -> tuple[str, ...]:
    """Return hashes of the folders outside gridweave that define a kernel or its arguments' classes.

    `_stamp` covers only gridweave's own sources.
    """
    tuples: list[Any] = [kind for kind in arguments if isinstance(kind, types.BaseNamedTuple)]
    of_arguments = {kind.instance_class.__module__ for kind in tuples}
    foreign = {name for name in (function.__module__, *of_arguments) if not name.startswith("gridweave.")}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in foreign}
    return tuple(sorted(_hash_of(Path(file).parent) for file in files if file))


def _hash_of(folder: Path) -> str:
    return hashlib.sha256(b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


class _PartCacheImpl(_WholeCacheImpl):
    """The cache of parts, in the same folders as whole kernels but in files whose names end in ``-part``."""

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{super().get_filename_base(fullname, abiflags)}-part"

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        (name, _, bitcode), fndesc, env, signature, objectmode, lifted, annotation, reload_init, _ = payload
        library = _Part.of_bitcode(target_context.codegen(), name, bitcode)
        return compile_result(
            target_context=target_context,
            typing_context=target_context.typing_context,
            library=library,
            environment=env,
            entry_point=target_context.get_executable(library, fndesc, env),
            fndesc=fndesc,
            type_annotation=annotation,
            signature=signature,
            objectmode=objectmode,
            lifted=lifted,
            reload_init=reload_init,
        )


class _PartCache(_PromptCache):
    _impl_class = _PartCacheImpl


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function of numbers and numpy arrays at its first call, and cache the result on disk.

    Parameters
    ----------
    function : callable
        Must read and write only its arguments (no clock, no I/O, no global state), allocate no arrays, and be in a
        module in a folder named ``kernels``.

    Returns
    -------
    callable
        The compiled function; its attribute ``py_func`` is the plain function.
    """
    return _compiled(function, _PartCompiler, forceinline=False)


def kernel_part(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a short function for innermost loops like `kernel`, and inline it into each kernel that calls it."""
    return _compiled(function, _PartCompiler, forceinline=True)


def kernel_apart(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a large function like `kernel`, but never inline it.

    Elsewhere, the compiler inlines functions and their callees where it expects a benefit. With the search for sites
    inlined in four places, a pass would grow to 100,000 instructions and take minutes to compile.
    """
    return _compiled(function, _ApartCompiler, forceinline=False)


def kernel_method(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a method of a named tuple like `kernel_part`; kernels and Python call it as ``rules.run_pass(state)``.

    A kernel that calls the method is compiled once per class of the named tuple, so there is no method lookup at run
    time.
    """
    name = function.__name__
    if name not in _METHODS:
        _METHODS.add(name)
        options: Any = {**_OPTIONS, "forceinline": True, "no_cpython_wrapper": True, "pipeline_class": _PartCompiler}
        find = _finder(name)
        overload(find, jit_options=options)(find)
        template: Any = make_overload_method_template(types.BaseNamedTuple, name, find, inline="never")
        infer_getattr(type(name, (_BehindFields, template), {}))
    return cast("Callable[P, R]", _Method(function, _PartCompiler, forceinline=True))


_METHODS: set[str] = set()


class _BehindFields:
    """Resolves a method of named tuples for numba; a field with the same name takes precedence."""

    def _resolve(self, kind: Any, name: str) -> Any:
        return None if name in kind.fields else super()._resolve(kind, name)  # type: ignore[misc]


def _finder(name: str) -> Callable[..., Any]:
    """Return a function for numba's `overload` that looks up the method `name` in a named tuple class."""

    def find(own: Any, *arguments: Any) -> Any:
        method: Any = getattr(own.instance_class, name, None)

        def call(own: Any, *arguments: Any) -> Any:
            return method(own, *arguments)

        # Numba distinguishes functions with the same name and argument types by a number that each process counts from
        # zero. Without unique names, a call between parts cached by two processes could reach the wrong method.
        kind = own.instance_class
        call.__qualname__ = f"{kind.__module__}.{kind.__qualname__}.{name}"
        return call if isinstance(method, _Method) else None

    return find


def prepared(function: Callable[P, R], *arguments: object) -> Callable[P, R]:
    """Compile a kernel for these argument types, and return a callable that is faster to call many times.

    At every call of a kernel, numba examines each array in each argument to select the machine code. For a grid's
    state, that takes ten times as long as the call itself. The returned callable skips this step, so the caller must
    pass the right types. If compilation is switched off, return the kernel itself. If several processes need the same
    code, one process compiles it, and the others wait and load it from the cache.

    Parameters
    ----------
    function : callable
        A `kernel`, or a `kernel_part` whose name has no leading underscore.
    *arguments
        Example arguments, of which only the types matter.
    """
    whole = function.whole if isinstance(function, _Kernel) else function
    if not isinstance(whole, Dispatcher):
        return cast("Callable[P, R]", whole)
    # `numba.typeof` takes 1 ms, which adds up for a caller that creates many cores with the same array types.
    about = function, tuple(map(_layout, arguments))
    if about not in _PREPARED:
        with one_at_a_time(f"{function.__module__}.{function.__qualname__}"):
            _PREPARED[about] = whole.compile(tuple(map(numba.typeof, arguments)))
    return cast("Callable[P, R]", _PREPARED[about])


_PREPARED: dict[object, object] = {}


def _layout(argument: object) -> object:
    """Return a key that determines the numba type of an argument and is cheap to compute."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        return argument.dtype, argument.ndim, flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable
    return (type(argument), *map(_layout, argument)) if isinstance(argument, tuple) else type(argument)


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Hold a lock that is shared between processes, so that one process compiles while the others wait.

    If the lock file cannot be opened, continue without a lock.

    Parameters
    ----------
    what : str
        Name of the lock; a process waits only for processes that hold a lock with the same name.
    """
    config: Any = numba.config
    folder = _kept_in(Path(config.CACHE_DIR or _FOLDER))
    handle = -1
    # Without a writable cache, each process compiles for itself, so waiting would gain nothing.
    with contextlib.suppress(OSError):
        handle = os.open(folder / f"{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


class _Kernel:
    """A kernel that is declared to numba at its first call, or when a kernel that calls it is compiled.

    A command imports hundreds of kernels but calls only a few. A kernel's cached machine code includes its callees.
    """

    def __init__(self, function: Callable[..., Any], compiler: type[_Compiler], *, forceinline: bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._compiler = compiler
        # Without an explicit `forceinline`, a kernel inherits the option from its first caller.
        self._options = {**_OPTIONS, "forceinline": forceinline}

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)

    @functools.cached_property
    def part(self) -> Any:
        """The part that other kernels link, or the plain function if the user has switched compilation off."""
        return self._declared(_PartCache, no_cpython_wrapper=True, pipeline_class=self._compiler)

    @functools.cached_property
    def whole(self) -> Any:
        """The callable for Python: the whole kernel as machine code, or only the part if the kernel is private."""
        part = self.part
        if part is self.py_func or self.py_func.__name__.startswith("_"):
            return part
        whole = self._declared(_PromptCache, pipeline_class=_WholeCompiler)
        # Other kernels call the part.
        whole.get_call_template, whole.get_overload = part.get_call_template, part.get_overload
        return whole

    def _declared(self, cache: type[FunctionCache], **options: Any) -> Any:
        njit: Any = numba.njit
        # NUMBA_CACHE_DIR takes precedence over our folder. Restore the setting for other code that uses numba.
        config: Any = numba.config
        chosen = config.CACHE_DIR  # set from the environment when numba was imported
        try:
            config.CACHE_DIR = str(_kept_in(Path(chosen or _FOLDER)))
            declared = njit(**self._options, **options)(self.py_func)
            if declared is not self.py_func:
                declared._cache = cache(self.py_func)
            return declared
        finally:
            config.CACHE_DIR = chosen


class _Method(_Kernel):
    """A kernel that Python can also call as a method."""

    def __get__(self, own: object, kind: type[Any] | None = None) -> Any:
        return self if own is None else functools.partial(self, own)


@typeof_impl.register(_Kernel)
def _type_of_kernel(function: _Kernel, context: Any) -> Any:
    """Return the numba type of a kernel that another kernel calls, i.e. the type of the kernel's part."""
    return typeof_impl(function.part, context)


def _compiled(function: Callable[P, R], compiler: type[_Compiler], *, forceinline: bool) -> Callable[P, R]:
    return cast("Callable[P, R]", _Kernel(function, compiler, forceinline=forceinline))


def _stamp(package: Path) -> str:
    """Return a hash of this file and of all files in a package's folders named `kernels`, at any depth.

    Numba recompiles a function when the function's own file changes, but not when the file of a callee changes. So each
    version of the sources has its own cache folder.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    # In a checkout, the package's folders are links, which Path.rglob does not follow.
    folders = (Path(folder) for folder, _, _ in os.walk(package, followlinks=True))
    for path in sorted(path for folder in folders if folder.name == "kernels" for path in folder.glob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _kept_in(root: Path) -> Path:
    """Return the cache folder for the current sources; the first call locks it and removes old cache folders."""
    folder = root / _STAMP
    # If the folder is not writable, this process can remove nothing.
    with contextlib.suppress(OSError):
        _use(folder)
        _prune(root)
    return folder


def _use(folder: Path) -> None:
    """Create a cache folder if missing, and lock it until this process exits, so that no other process removes it."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another process has removed the folder
            handle = os.open(folder / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(handle)
            if os.path.samestat(os.fstat(handle), os.stat(folder / _USED)):
                return
            os.close(handle)


def _prune(root: Path) -> None:
    """Remove unused cache folders that are older than `_KEPT_S`, or not among the `_STATES_KEPT` newest."""
    folders = sorted(
        ((_used_s(folder), folder) for folder in root.iterdir() if _IS_STAMP.fullmatch(folder.name)), reverse=True
    )
    for place, (used_s, folder) in enumerate(folders):
        if place >= _STATES_KEPT or used_s < time.time() - _KEPT_S:
            with contextlib.suppress(OSError):  # in use, or another process is removing it
                _remove(folder)


def _used_s(folder: Path) -> float:
    """Return when a cache folder was last used (Unix time [s]); 0 if unknown."""
    for path in (folder / _USED, folder):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
    return 0.0


def _remove(folder: Path) -> None:
    handle = os.open(folder / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


_STATES_KEPT = 10
_KEPT_S = 30 * 24 * 3600.0
_USED = "used"
"""Name of the lock file in a cache folder; its modification time is when the folder was last used."""
_IS_STAMP = re.compile("[0-9a-f]{16}")
_FOLDER = platformdirs.user_cache_path("gridweave") / "kernels"
_STAMP = _stamp(Path(__file__).parent)
