"""The one place that names the compiler: how a kernel is declared, and where what it was compiled to is kept."""

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
"""An integer as kernels take and return it."""

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]
"""Arrays as kernels take them; their docstrings say the shapes, and for records the type of a row."""

Record = Any
"""A row of an array of records, whose fields have no types for mypy."""

# The kernels allocate nothing, so they need none of numba's reference counting, which would cost half of their time:
# a site's state is a tuple of arrays, and each call would count up and down for every one of them. Nor are the wrappers
# made by which C code, or for a private kernel Python, could call them: they take a tenth of the time to compile.
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}


# Numba brings every function to machine code, with all that it calls, and does so again in each function that calls it:
# the innermost of ten levels would be optimised ten times. So what kernels call is kept as it was translated, and is
# optimised and brought to machine code once, in the kernel that Python calls.


class _Part(JITCodeLibrary):
    """What other kernels call: for them to take in, without machine code of its own."""

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
        """Return what `serialize_using_bitcode` was given back."""
        part = cls(codegen, name)
        part._final_module = llvm.parse_bitcode(bitcode)
        part._finalize_final_module()
        return part

    @property
    def codegen(self) -> Any:
        return _NoEnvironments


class _NoEnvironments:
    """A part has no place in memory, nor has its environment; the kernel that takes it in sets that."""

    @staticmethod
    def set_env(env_name: str, env: object) -> None:
        pass


class _Apart(_Part):
    """A part that is never put in line."""

    def _finalize_final_module(self) -> None:
        for function in self._final_module.functions:
            # Its own function; those that it calls are no longer external.
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.add_function_attribute("noinline")
        super()._finalize_final_module()


class _Whole(JITCodeLibrary):
    """What Python calls: all of it is machine code."""

    def _optimize_final_module(self) -> None:
        for function in self._final_module.functions:
            # Nobody else calls what it has taken in, so what is not used of their arguments, and they have hundreds,
            # need not be handed over.
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
    """Numba's own, with one kind of library or the other."""

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
    """Where what a kernel was compiled to is kept: by the name of its module, wherever that lies.

    The folder it is kept in belongs to one state of all the sources. So all checkouts and installations of a user whose
    kernels are the same share what one of them has compiled. Numba itself tells the places of files apart.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._folder = Path(cast("Any", numba.config).CACHE_DIR) / function.__module__
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Callable[..., object], file: str) -> _ByName | None:
        """Return None where nothing can be written; numba then looks for another place."""
        found = cls(function)
        try:
            found.ensure_cache_path()
        except OSError:
            return None
        return found

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
    """Where kernels are kept."""

    _locator_classes: list[Any] = [_ByName, *CompileResultCacheImpl._locator_classes]  # noqa: RUF012 - as numba declares it


class _Index(IndexDataCacheFile):
    """What a kernel was compiled to, by its arguments.

    Numba numbers the files. Of two processes that add to an index at once, both would take the next number, and the
    one's code could stand under the other's arguments. Here each file has a name that no other has.
    """

    def save(self, key: object, data: object) -> None:
        kept = self._load_index()
        if key not in kept:
            kept[key] = f"{self._index_name}.{uuid.uuid4().hex}.nbc"
            self._save_index(kept)
        self._save_data(kept[key], data)


class _PromptCache(FunctionCache):
    """Load what was compiled before without what only a compilation needs.

    Numba first reads in its knowledge of all that numpy and scipy offer to compiled code, which takes a second, and
    then loads the machine code, which takes a fiftieth of one and uses none of it. A compilation reads it in by itself.

    Numba keeps one index for all that a function was compiled for: to read it is to import the classes of every
    discipline, and of two processes that write it at once one is forgotten. Here each set of classes has its own.
    """

    _impl_class = _WholeCacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> object:
        self._cache_file = self._index_for(sig)
        with self._guard_against_spurious_io_errors():
            try:
                return self._load_overload(sig, target_context)
            except (ImportError, AttributeError):
                # Something was compiled for a class that is gone: the discipline of a user, say.
                self.flush()
                return None

    def save_overload(self, sig: Any, data: object) -> None:
        self._cache_file = self._index_for(sig)
        try:
            super().save_overload(sig, data)
        except (ImportError, AttributeError):
            # Another process has kept something for such a class since we looked.
            self.flush()
            super().save_overload(sig, data)

    def _index_for(self, arguments: tuple[Any, ...]) -> _Index:
        """Return the index for arguments of these classes of named tuples."""
        tuples: list[Any] = [kind for kind in arguments if isinstance(kind, types.BaseNamedTuple)]
        classes = [kind.instance_class for kind in tuples]
        names = " ".join(f"{one.__module__}.{one.__qualname__}" for one in classes)
        apart = f"-{hashlib.sha256(names.encode()).hexdigest()[:16]}" if names else ""
        return _Index(self._cache_path, f"{self._impl.filename_base}{apart}", self._impl.locator.get_source_stamp())

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return *super()._index_key(sig, codegen), _foreign_sources(self._py_func, sig)


def _foreign_sources(function: Callable[..., object], arguments: tuple[Any, ...]) -> tuple[str, ...]:
    """Return hashes of the folders of other packages that a kernel or the classes of its arguments are from.

    Of these `_stamp` knows nothing.
    """
    tuples: list[Any] = [kind for kind in arguments if isinstance(kind, types.BaseNamedTuple)]
    of_arguments = {kind.instance_class.__module__ for kind in tuples}
    foreign = {name for name in (function.__module__, *of_arguments) if not name.startswith("gridweave.")}
    files = {getattr(sys.modules.get(name), "__file__", None) for name in foreign}
    return tuple(sorted(_hash_of(Path(file).parent) for file in files if file))


def _hash_of(folder: Path) -> str:
    return hashlib.sha256(b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


class _PartCacheImpl(_WholeCacheImpl):
    """Where parts are kept, beside the kernels of the same name."""

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
    """Compile a pure function over numbers and numpy arrays, at its first call, and keep the result on disk.

    Parameters
    ----------
    function : callable
        Reads and writes its arguments alone: no clock, no I/O, no global state. It allocates no array. Its module lies
        in a folder named ``kernels``.

    Returns
    -------
    callable
        The same function, compiled. The plain one stays at hand as its ``py_func``.
    """
    return _compiled(function, _PartCompiler, forceinline=False)


def kernel_part(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a short function of the innermost loops: as `kernel`, but put in line wherever a kernel calls it."""
    return _compiled(function, _PartCompiler, forceinline=True)


def kernel_apart(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a large function that is called from several places: as `kernel`, but never put in line.

    The compiler makes a copy of what it calls where that seems to pay, and a copy of what that calls: of a search for
    sites, which a pass calls in four places, a hundred thousand instructions that take minutes to compile.
    """
    return _compiled(function, _ApartCompiler, forceinline=False)


def kernel_method(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a method of a named tuple: as `kernel_part`. Kernels call it as Python does, ``rules.run_pass(state)``.

    So a kernel is handed what it works with together with the kernels for that, and need not know whose they are: it is
    compiled for each class apart, and nothing is looked up while it runs.
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
    """A method of named tuples; what a tuple has as a field of the same name is that, as in Python."""

    def _resolve(self, kind: Any, name: str) -> Any:
        return None if name in kind.fields else super()._resolve(kind, name)  # type: ignore[misc]


def _finder(name: str) -> Callable[..., Any]:
    """Return what tells numba which kernel a class of named tuples has as its method of this name."""

    def find(own: Any, *arguments: Any) -> Any:
        method: Any = getattr(own.instance_class, name, None)

        def call(own: Any, *arguments: Any) -> Any:
            return method(own, *arguments)

        # In compiled code functions of one name and of arguments of the same types are told apart by a number that
        # each process gives anew: of parts that two processes have compiled, one could call the other's method.
        kind = own.instance_class
        call.__qualname__ = f"{kind.__module__}.{kind.__qualname__}.{name}"
        return call if isinstance(method, _Method) else None

    return find


def prepared(function: Callable[P, R], *arguments: object) -> Callable[P, R]:
    """Return the machine code of a kernel for arguments of these types, to be called many times one by one.

    Numba looks at every array of every argument, at every call, to find the code that fits: for the state of a grid ten
    times as long as the call then takes. What is returned here does not look, so whoever calls it sees to the types.
    Where compilation is switched off it is the kernel itself. Of several processes that would compile it, one does, and
    the others wait and load that.

    Parameters
    ----------
    function : callable
        A `kernel`, or a `kernel_part` without an underscore.
    *arguments
        Of the types that it will be called with; their values do not matter.
    """
    whole = function.whole if isinstance(function, _Kernel) else function
    if not isinstance(whole, Dispatcher):
        return cast("Callable[P, R]", whole)
    # Whoever makes many cores has the types of the same arrays worked out for each, which takes numba a millisecond.
    about = function, tuple(map(_layout, arguments))
    if about not in _PREPARED:
        with one_at_a_time(f"{function.__module__}.{function.__qualname__}"):
            _PREPARED[about] = whole.compile(tuple(map(numba.typeof, arguments)))
    return cast("Callable[P, R]", _PREPARED[about])


_PREPARED: dict[object, object] = {}


def _layout(argument: object) -> object:
    """Return what the type of an argument depends on, and nothing that is costly to find."""
    if isinstance(argument, np.ndarray):
        flags = argument.flags
        return argument.dtype, argument.ndim, flags.c_contiguous, flags.f_contiguous, flags.aligned, flags.writeable
    return (type(argument), *map(_layout, argument)) if isinstance(argument, tuple) else type(argument)


@contextlib.contextmanager
def one_at_a_time(what: str) -> Iterator[None]:
    """Have other processes wait that come here too: what all of them would compile is compiled by the first alone.

    Parameters
    ----------
    what : str
        Who waits for whom.
    """
    config: Any = numba.config
    folder = _kept_in(Path(config.CACHE_DIR or _FOLDER))
    handle = -1
    # Where nothing can be kept, each compiles for itself, and nobody need wait.
    with contextlib.suppress(OSError):
        handle = os.open(folder / f"{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if handle >= 0:
            os.close(handle)


class _Kernel:
    """A kernel, which numba hears of when it is first called, or taken in by one that is compiled.

    A command calls a few of the hundreds that it imports; what is kept on disk has taken in all that it calls.
    """

    def __init__(self, function: Callable[..., Any], compiler: type[_Compiler], *, forceinline: bool) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self._compiler = compiler
        # What does not say whether it is put in line has it from whatever calls it first.
        self._options = {**_OPTIONS, "forceinline": forceinline}

    def __call__(self, *arguments: Any) -> Any:
        return self.whole(*arguments)

    @functools.cached_property
    def part(self) -> Any:
        """What other kernels take in; the plain function where the user has switched compilation off."""
        return self._declared(_PartCache, no_cpython_wrapper=True, pipeline_class=self._compiler)

    @functools.cached_property
    def whole(self) -> Any:
        """What Python calls."""
        part = self.part
        if part is self.py_func or self.py_func.__name__.startswith("_"):
            return part
        whole = self._declared(_PromptCache, pipeline_class=_WholeCompiler)
        # Where another kernel calls it, it is the part that is called.
        whole.get_call_template, whole.get_overload = part.get_call_template, part.get_overload
        return whole

    def _declared(self, cache: type[FunctionCache], **options: Any) -> Any:
        njit: Any = numba.njit
        # A user's own choice of folder (NUMBA_CACHE_DIR) goes before ours; other users of numba are left alone.
        config: Any = numba.config
        chosen = config.CACHE_DIR  # set from the environment, when numba is imported
        try:
            config.CACHE_DIR = str(_kept_in(Path(chosen or _FOLDER)))
            declared = njit(**self._options, **options)(self.py_func)
            if declared is not self.py_func:
                declared._cache = cache(self.py_func)
            return declared
        finally:
            config.CACHE_DIR = chosen


class _Method(_Kernel):
    """A kernel that Python, too, calls as a method."""

    def __get__(self, own: object, kind: type[Any] | None = None) -> Any:
        return self if own is None else functools.partial(self, own)


@typeof_impl.register(_Kernel)
def _type_of_kernel(function: _Kernel, context: Any) -> Any:
    """Return what numba takes a kernel for that another one calls: its part."""
    return typeof_impl(function.part, context)


def _compiled(function: Callable[P, R], compiler: type[_Compiler], *, forceinline: bool) -> Callable[P, R]:
    return cast("Callable[P, R]", _Kernel(function, compiler, forceinline=forceinline))


def _stamp(package: Path) -> str:
    """Return a hash of the sources of all kernels in a package, and of this file.

    Numba compiles a function anew when its own file has changed, but not when a function that it calls has; so what was
    compiled is kept apart for each state of all the sources. All folders named `kernels` count, at any depth.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes())
    # In a checkout the folders of the package are links, which Path.rglob does not follow.
    folders = (Path(folder) for folder, _, _ in os.walk(package, followlinks=True))
    for path in sorted(path for folder in folders if folder.name == "kernels" for path in folder.glob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@functools.cache
def _kept_in(root: Path) -> Path:
    """Return the folder below a root for what these sources are compiled to; the first call says that it is in use."""
    folder = root / _STAMP
    # Where nothing can be kept, there is nothing to remove either.
    with contextlib.suppress(OSError):
        _use(folder)
        _prune(root)
    return folder


def _use(folder: Path) -> None:
    """Make a folder if need be, and hold it until this process ends: nobody removes what another process holds."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed between two of these steps
            handle = os.open(folder / _USED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(handle)
            if os.path.samestat(os.fstat(handle), os.stat(folder / _USED)):
                return
            os.close(handle)


def _prune(root: Path) -> None:
    """Remove what was compiled from other sources: all but what was used last, and what was not used for long."""
    found = sorted(
        ((_used_s(folder), folder) for folder in root.iterdir() if _IS_STAMP.fullmatch(folder.name)), reverse=True
    )
    for place, (used_s, folder) in enumerate(found):
        if place >= _STATES_KEPT or used_s < time.time() - _KEPT_S:
            with contextlib.suppress(OSError):  # in use, or somebody else is at it
                _remove(folder)


def _used_s(folder: Path) -> float:
    """Return when a folder was last used, in seconds since 1970."""
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
"""The file in a folder of compiled code that says when it was last used, and that is locked while it is."""
_IS_STAMP = re.compile("[0-9a-f]{16}")
_FOLDER = platformdirs.user_cache_path("gridweave") / "kernels"
_STAMP = _stamp(Path(__file__).parent)
