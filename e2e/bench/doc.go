// Command bench measures what pullgated costs, in parts that are sections of docs/performance/performance.md.
//
// The calls: what a proxy in the way of CRI calls costs; pullgated, beside a direct connection, a program that copies
// bytes and two libraries for gRPC proxies.
//
//	bench ──▶ target ──▶ fake runtime
//
// Runtime and targets are processes of their own, started by bench. In each round every target is measured once in
// every cell, one after the other and in another order each time, so that other load on the machine affects all of
// them. Results are ratios to the direct connection in the same round.
//
// The start: how long pullgated takes from exec to its first answers, with stores of pull records of several sizes. The
// stores are written without pullgated, in format 1.
//
// The containers: how long pods take to start on a real containerd, directly, through pullgated, and with the pod
// source; and PullImage of a present image. A pullgated has to be in bin/, as make build puts it there.
package main
