// Package files implements the folder of policy files.
//
// # Layout
//
// A policy file is a regular file in the folder itself with the suffix .yaml, .yml or .json. It has one document, and its apiVersion and
// kind, or for a file without a kind one of its fields, select the [Kind] that reads it. Files whose names begin with a dot are ignored; other files and folders are ignored and reported in
// Set.Ignored. A symbolic link with the name of a policy file is followed if it stays inside the folder. So the layout of a Kubernetes
// ConfigMap volume can be read: links to ..data/NAME, where ..data is a link that is replaced when the content changes.
//
// Folder and files must be owned by root, or by the user of the process, and must not be writable by others; [Paths] has exceptions. There are at most 1,000
// policy files of at most 1 MiB, and 16 MiB in all.
//
// # All or nothing
//
// [Read] returns a [Set] of all files, or all errors of all files. A [Watcher] reads the folder again. It returns a changed content once it
// has been the same in two successive calls, because a file that is being written can be valid without its end.
package files
