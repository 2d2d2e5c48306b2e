// Package sbom tells what a program is made of, from what the Go linker has written into it.
package sbom
