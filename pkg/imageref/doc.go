// Package imageref normalises the names of images as container runtimes do.
//
// Whoever writes busybox means docker.io/library/busybox:latest; two names are the same if their
// normal forms are. The repository of a name is what access is proved for.
package imageref
