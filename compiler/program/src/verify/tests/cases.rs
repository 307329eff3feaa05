//! Broken programs.
