//! The other engines that are linked in, in the same form. All hook one function after the other.

use std::{ffi::c_void, ptr};

use dobby_sys::ffi::{DobbyDestroy, DobbyHook};
use retour::RawDetour;

use super::{
    engine::{Install, Installed, Refused, Way},
    functions::{many, replacement},
};

/// The ways of retour.
pub const RETOUR: [Way; 1] = [("replace", |target| {
    // SAFETY: both take nothing and return an integer.
    let detour = unsafe { RawDetour::new(target, replacement as *const ()) }?;
    // SAFETY: one thread runs.
    unsafe { detour.enable() }?;
    std::mem::forget(detour);
    Ok(())
})];

/// Dobby's.
pub const DOBBY: [Way; 1] = [("replace", |target| dobby(target))];

/// retour's way to hook many.
pub const RETOUR_MANY: [Install; 1] = [("replace, one by one", |count| {
    let detours = (0..count).map(|number| {
        // SAFETY: both take nothing and return an integer.
        let detour = unsafe { RawDetour::new(many(number), replacement as *const ()) }?;
        // SAFETY: one thread runs.
        unsafe { detour.enable() }?;
        Ok(detour)
    });
    Ok(Box::new(Detours(detours.collect::<Result<_, Refused>>()?)))
})];

/// Dobby's way to hook many.
pub const DOBBY_MANY: [Install; 1] = [("replace, one by one", |count| {
    (0..count).try_for_each(|number| dobby(many(number)))?;
    Ok(Box::new(Dobbied(count)))
})];

struct Detours(Vec<RawDetour>);

impl Installed for Detours {
    fn remove(self: Box<Self>) -> Result<(), Refused> {
        for detour in &self.0 {
            // SAFETY: one thread runs.
            unsafe { detour.disable() }?;
        }
        Ok(())
    }
}

fn dobby(target: *const ()) -> Result<(), Refused> {
    let mut original = ptr::null_mut();
    // SAFETY: one thread runs, and both take nothing and return an integer.
    let code = unsafe { DobbyHook(target as *mut c_void, replacement as *mut c_void, &raw mut original) };
    if code == 0 { Ok(()) } else { Err(format!("DobbyHook answers {code}").into()) }
}

/// The first so many functions.
struct Dobbied(usize);

impl Installed for Dobbied {
    fn remove(self: Box<Self>) -> Result<(), Refused> {
        for number in 0..self.0 {
            // SAFETY: one thread runs.
            if unsafe { DobbyDestroy(many(number) as *mut c_void) } != 0 {
                return Err("DobbyDestroy fails".into());
            }
        }
        Ok(())
    }
}
