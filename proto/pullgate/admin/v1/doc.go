// Package adminv1 is the admin API of pullgated, generated from pull_records.proto, which describes what each call
// promises. A program that talks to it dials the Unix socket of admin.listen without TLS, as root.
package adminv1

//go:generate sh -c "cd ../../.. && go tool -modfile=../.ci/buf.mod buf generate"
