// Package inflight implements work that callers with the same key share while it is in flight, with a queue and limits
// for each tenant: a tenant that causes much or slow work delays only itself.
package inflight
