// Package metrics implements the metrics of pullgate-policyd.
package metrics
