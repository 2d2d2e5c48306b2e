// Command bench measures what a proxy in the way of CRI calls costs: pullgated, beside a direct connection, a program that copies
// bytes, HAProxy, nginx and two libraries for gRPC proxies.
//
//	bench ──▶ target ──▶ fake runtime
//
// Runtime and targets are processes of their own, started by bench. In each round every target is measured once in every cell, one after
// the other and in another order each time, so that what else happens on the machine hits all of them. Results are ratios to the direct
// connection in the same round.
package main
