//! The part of grapnel that lives in the target.
