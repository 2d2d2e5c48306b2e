// Command bench measures what pullgated costs. Each part is a section of docs/performance/performance.md:
//
//   - calls: CRI calls before a fake runtime: directly, through a program that copies bytes, and through pullgated;
//   - start: the time from exec of pullgated to its first answers, with stores of several sizes, which are written
//     without pullgated, in format 1;
//   - pods: the calls of a pod start, and many pods at once, on a real containerd, directly and through the pullgated
//     in bin/.
//
// What is compared is measured in turns, in another order in each round, so that other load on the machine affects all
// of it. The fake runtime and the programs before it are processes of their own.
package main
