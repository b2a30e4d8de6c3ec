//! Units that `-gsplit-dwarf` put into files of their own.

use super::discarded::Slice;
use super::files::{FileStore, Opened, path_of};
use super::search::SearchPath;
use super::sections;
use super::units;
use addr2line::SplitDwarfLoad;
use gimli::{DwarfPackage, Section};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Finds the split units of one object.
pub(crate) struct SplitUnits<'a> {
    store: &'a FileStore,
    search: SearchPath,
    package: Option<DwarfPackage<Slice<'a>>>,
    /// The object's directory.
    beside: PathBuf,
}

impl<'a> SplitUnits<'a> {
    pub(crate) fn new(
        store: &'a FileStore,
        search: &SearchPath,
        object: &Opened<'a>,
        package: Option<&Opened<'a>>,
    ) -> Self {
        let empty = Slice::new(&[], sections::endian(&object.elf), None);
        let package = package.and_then(|package| {
            let load = |id: gimli::SectionId| {
                Ok::<_, gimli::Error>(sections::dwarf(store, package, id, id.dwo_name(), None))
            };
            // A broken package is no reason to have no lines at all.
            DwarfPackage::load(load, empty)
                .map_err(|error| {
                    store.trouble(format!("the package {} isn't used: {error}", package.path.display()));
                })
                .ok()
        });
        let beside = object.path.parent().unwrap_or(Path::new("/")).to_owned();
        Self { store, search: search.clone(), package, beside }
    }

    /// The part of a unit that was split off: in the package beside the object, else in the file where the compiler left
    /// it, or one of that name beside the object.
    pub(crate) fn load(&self, load: &SplitDwarfLoad<Slice<'a>>) -> Option<Arc<gimli::Dwarf<Slice<'a>>>> {
        let packaged =
            self.package.as_ref().and_then(|package| package.find_cu(load.dwo_id, &load.parent).ok()?);
        if let Some(dwarf) = packaged.and_then(|dwarf| unit_of(dwarf, load)) {
            return self.checked(dwarf);
        }
        let directory = path_of(load.comp_dir.map_or(&b""[..], |directory| directory.slice()));
        let name = path_of(load.path?.slice());
        let recorded = directory.join(name);
        let places = [
            self.search.local(&recorded).ok(),
            self.search.beside(&self.beside, name).ok().filter(|_| name.is_relative()),
            name.file_name().map(|name| self.beside.join(name)),
        ];
        let found = places.into_iter().flatten().find_map(|path| {
            let opened = self.store.open(&path, &[]).ok()?;
            let section = |id: gimli::SectionId| {
                Ok::<_, gimli::Error>(sections::dwarf(self.store, &opened, id, id.dwo_name(), None))
            };
            let mut dwarf = gimli::Dwarf::load(section).ok()?;
            dwarf.make_dwo(&load.parent);
            unit_of(dwarf, load)
        });
        if found.is_none() {
            self.store.trouble(format!(
                "names and inlined calls are in {}, which isn't there or is of another build",
                recorded.display()
            ));
        }
        self.checked(found?)
    }

    fn checked(&self, dwarf: gimli::Dwarf<Slice<'a>>) -> Option<Arc<gimli::Dwarf<Slice<'a>>>> {
        let header = dwarf.units().next().ok()??;
        let flat = dwarf.unit(header).is_ok_and(|unit| units::is_flat(&unit));
        if !flat {
            self.store.trouble(units::too_deep(&self.beside));
        }
        flat.then(|| Arc::new(dwarf))
    }
}

/// Makes the unit that is wanted the first one: a file may have type units before it, and several compilation units.
fn unit_of<'a>(
    mut dwarf: gimli::Dwarf<Slice<'a>>,
    load: &SplitDwarfLoad<Slice<'a>>,
) -> Option<gimli::Dwarf<Slice<'a>>> {
    let mut headers = dwarf.units();
    let start = loop {
        let header = headers.next().ok()??;
        // Before DWARF 5 the id is an attribute.
        let id = dwarf.unit(header).ok().and_then(|unit| unit.dwo_id);
        if id == Some(load.dwo_id) {
            break header.debug_info_offset()?.0;
        }
    };
    let mut rest = *dwarf.debug_info.reader();
    gimli::Reader::skip(&mut rest, start).ok()?;
    dwarf.debug_info = gimli::DebugInfo::from(rest);
    Some(dwarf)
}
