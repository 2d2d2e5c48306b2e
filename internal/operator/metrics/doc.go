// Package metrics holds the Prometheus metrics of pullgate. Names and labels are a contract that
// dashboards and alerts are written against. A label value is always one of a fixed set: never an
// image, a pod, a namespace or a credential, and what a client can choose is counted as "other".
package metrics
