// Package adminv1 is the admin API of pullgated, generated from pull_records.proto, which says what each call
// promises. A program that talks to it dials the Unix socket of admin.listen without TLS, as root.
package adminv1 //nolint:revive // buf wants the version as the directory, Go a name that tells versions apart

//go:generate sh -c "cd ../../.. && go tool -modfile=../.ci/buf.mod buf generate"
