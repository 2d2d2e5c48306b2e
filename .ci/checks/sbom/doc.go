// Package sbom lists the components of a program, from the build information that the Go linker has written into it.
package sbom
