// Package safetext makes texts of others harmless and short, for messages, logs and protobuf: those of tenants,
// registries, signatures and backends. None of its functions keeps or reads the rest of a text of megabytes.
package safetext
