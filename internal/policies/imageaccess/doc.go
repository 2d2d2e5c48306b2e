// Package imageaccess implements the kind ImageAccess: files by which pods may use images that they did not prove
// access to (Share, Lend), or may not use images at all (Fence). docs/design/0043 says how their rights are judged.
//
// A [Set] is pure, except for [Set.Lend] and [Set.Unusable], which read the files with the credentials.
package imageaccess
