//! Places of temporaries in a workspace.
