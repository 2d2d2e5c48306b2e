// Package prose writes the sentences of an explanation: by which rule a pod may or may not use an image, what will happen at its
// calls, and what would change the verdict. Commands in them are in backquotes. The evidence is sent beside them as values.
package prose
