// Package imageref implements the names of images, as container runtimes read them.
//
// busybox means docker.io/library/busybox:latest; two names are the same if their normal forms are. Access to an image
// is proved for the repository of a name.
package imageref
