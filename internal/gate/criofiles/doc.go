// Package criofiles reads on a node what CRI-O does by its own configuration, and no CRI call shows: with which
// credentials it pulls, and to which registries it resolves short names.
package criofiles
