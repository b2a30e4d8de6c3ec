//! The versions of symbols ("GNU version symbols", LSB core, "Symbol Versioning").

use super::table::Table;
use crate::{
    elf::{self, VersionDefinition},
    module::Module,
};

/// The name of the version with this index: the first name of its definition.
fn name(module: &Module, index: u16) -> Option<&[u8]> {
    let (table, count) = module.dynamic().version_definitions;
    let mut at = table?;
    // Indices have 15 bits.
    for _ in 0..count.min(1 << 15) {
        let definition = module.read::<VersionDefinition>(at)?;
        if definition.index & !elf::VERSION_HIDDEN == index {
            // The structure begins with the offset of the name.
            let name = module.read::<u32>(at.checked_add(definition.to_name as usize)?)?;
            return module.string(name as usize);
        }
        if definition.to_next == 0 {
            break;
        }
        at = at.checked_add(definition.to_next as usize)?;
    }
    None
}

/// The name of the version of a symbol, by the symbol's index. `None` if it has none, as all have in an object without
/// versions.
pub(super) fn of<'a>(table: &Table<'a>, symbol: usize) -> Option<&'a [u8]> {
    /// Local, and global without a version.
    const NO_VERSION: u16 = 1;
    let index = table.version_index(symbol)? & !elf::VERSION_HIDDEN;
    if index <= NO_VERSION { None } else { name(table.module, index) }
}
