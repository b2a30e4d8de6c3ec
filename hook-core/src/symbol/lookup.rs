//! Functions of a loaded object, wherever a symbol table names them.

use alloc::vec::Vec;
#[cfg(feature = "files")]
use core::cell::OnceCell;
use core::ops::Range;

#[cfg(feature = "files")]
use super::{
    Best,
    files::{FileError, FileSymbol, FileSymbols},
};
use super::{Symbol, SymbolKind};
use crate::{extent, module::Module};

/// Finds functions of one loaded object: first among what it exports, then, with the feature `files`, in its files, which
/// are opened when they are first needed and stay open.
///
/// ```
/// use grapnel_hook::{module, symbol::Lookup};
///
/// let debug = module::r_debug_of_this_process().expect("a dynamic linker");
/// // SAFETY: nothing is loaded or unloaded meanwhile.
/// let modules = unsafe { module::loaded_modules(debug) };
/// let libc = modules.iter().find(|module| module.is_called(b"libc.so.6")).expect("libc is loaded");
/// let lookup = Lookup::new(libc);
/// let qsort = lookup.find(b"qsort")?;
/// let function = lookup.function_at(qsort.addr + 1).expect("inside it");
/// assert_eq!(function.range.start, qsort.addr);
/// # Ok::<(), grapnel_hook::symbol::LookupError>(())
/// ```
#[derive(Debug)]
pub struct Lookup<'a> {
    module: &'a Module,
    #[cfg(feature = "files")]
    roots: Option<&'a [&'a [u8]]>,
    #[cfg(feature = "files")]
    files: OnceCell<Result<FileSymbols, FileError>>,
}

/// Why a function isn't found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupError {
    /// The object has no symbol of the name.
    #[error("{} has no function {}", Object(object), name.escape_ascii())]
    Missing {
        /// The name, with its version if one was asked for.
        name: Vec<u8>,
        /// The object's name.
        object: Vec<u8>,
    },
    /// The object doesn't export it, and there is no other symbol table.
    #[cfg(feature = "files")]
    #[error("{} doesn't export {}, and its other symbols aren't known: {source}", Object(object), name.escape_ascii())]
    NotExported {
        /// The name, with its version if one was asked for.
        name: Vec<u8>,
        /// The object's name.
        object: Vec<u8>,
        /// Why there is none.
        source: FileError,
    },
    /// Several functions have the name, all known within their source files only.
    #[error("{} has {} functions {}", Object(object), addresses.len(), name.escape_ascii())]
    Ambiguous {
        /// The name.
        name: Vec<u8>,
        /// The object's name.
        object: Vec<u8>,
        /// Where they are.
        addresses: Vec<usize>,
    },
}

impl LookupError {
    /// What could be done instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "check the name; a function that was inlined everywhere has no symbol",
            #[cfg(feature = "files")]
            Self::NotExported { source, .. } => source.remedy(),
            Self::Ambiguous { .. } => "pass the address of the one that is meant",
        }
    }
}

/// The function around an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name, if a symbol table has one.
    pub name: Option<Vec<u8>>,
    /// Its addresses: as the symbol's size says, else as the unwind table does.
    pub range: Range<usize>,
}

impl<'a> Lookup<'a> {
    /// For the functions of this object.
    #[cfg(not(feature = "files"))]
    pub fn new(module: &'a Module) -> Self {
        Self { module }
    }

    /// Finds a function by its name. `name@VERSION` asks for one version (`memcpy@GLIBC_2.2.5`).
    ///
    /// # Errors
    /// If there is no such function, or there are several.
    pub fn find(&self, name: &[u8]) -> Result<Symbol, LookupError> {
        let at = name.iter().position(|&byte| byte == b'@').filter(|&at| at > 0);
        let (base, version) = match at {
            Some(at) => (&name[..at], Some(name.get(at + 1..).unwrap_or(&[]))),
            None => (name, None),
        };
        let version = version.map(|version| version.strip_prefix(b"@").unwrap_or(version));
        let exported = match version {
            Some(version) => super::find_version(self.module, base, version),
            None => super::find(self.module, base),
        };
        // Data of the name is no function.
        let exported = exported.filter(|symbol| symbol.kind != SymbolKind::Object);
        exported.map_or_else(|| self.find_in_files(name, base, version), Ok)
    }

    /// The function around an address of this object. `None` if neither a symbol nor the unwind table has it.
    pub fn function_at(&self, address: usize) -> Option<Function> {
        let named = self.named_in_files(address).or_else(|| super::function_at(self.module, address));
        // Hand-written assembly may have one entry for several functions, so symbols go first.
        let described = || extent::in_module(self.module, address);
        match named {
            Some((name, symbol)) => {
                let range = if symbol.size == 0 { described()? } else { symbol.range() };
                Some(Function { name: Some(name.into()), range })
            }
            None => Some(Function { name: None, range: described()? }),
        }
    }

    #[cfg(not(feature = "files"))]
    fn find_in_files(&self, name: &[u8], _: &[u8], _: Option<&[u8]>) -> Result<Symbol, LookupError> {
        Err(LookupError::Missing { name: name.into(), object: self.module.name().into() })
    }

    #[cfg(not(feature = "files"))]
    fn named_in_files(&self, _: usize) -> Option<(&[u8], Symbol)> {
        None
    }
}

#[cfg(feature = "files")]
impl<'a> Lookup<'a> {
    /// For the functions of this object.
    pub fn new(module: &'a Module) -> Self {
        Self { module, roots: None, files: OnceCell::new() }
    }

    /// The same with the folders in which debug files are kept, as `/usr/lib/debug` is.
    pub fn with_debug_roots(module: &'a Module, roots: &'a [&'a [u8]]) -> Self {
        Self { roots: Some(roots), ..Self::new(module) }
    }

    /// The symbols that are in files.
    ///
    /// # Errors
    /// Why there are none.
    pub fn files(&self) -> Result<&FileSymbols, &FileError> {
        let open = || match self.roots {
            Some(roots) => FileSymbols::open_in(self.module, roots),
            None => FileSymbols::open(self.module),
        };
        self.files.get_or_init(open).as_ref()
    }

    fn find_in_files(&self, name: &[u8], base: &[u8], version: Option<&[u8]>) -> Result<Symbol, LookupError> {
        let object = || self.module.name().into();
        let files = self.files().map_err(|source| LookupError::NotExported {
            name: name.into(),
            object: object(),
            source: source.clone(),
        })?;
        let (mut best, mut local) = (Best::default(), Vec::<Symbol>::new());
        files.for_each_of_name(base, &mut |found: FileSymbol<'_>| {
            if found.symbol.kind == SymbolKind::Object || version.is_some() && found.version != version {
                return;
            }
            match found.local {
                false => best.offer(found.symbol),
                true if local.iter().all(|other| other.addr != found.symbol.addr) => local.push(found.symbol),
                true => {}
            }
        });
        match (best.0, local.as_slice()) {
            (Some(symbol), _) | (None, &[symbol]) => Ok(symbol),
            (None, []) => Err(LookupError::Missing { name: name.into(), object: object() }),
            (None, several) => Err(LookupError::Ambiguous {
                name: name.into(),
                object: object(),
                addresses: several.iter().map(|symbol| symbol.addr).collect(),
            }),
        }
    }

    fn named_in_files(&self, address: usize) -> Option<(&[u8], Symbol)> {
        self.files().ok()?.function_at(address).map(|found| (found.name, found.symbol))
    }
}

struct Object<'a>(&'a [u8]);

impl core::fmt::Display for Object<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            b"" => f.write_str("the program"),
            name => write!(f, "{}", name.escape_ascii()),
        }
    }
}
