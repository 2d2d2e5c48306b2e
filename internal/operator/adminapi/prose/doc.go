// Package prose implements the sentences of an explanation: the rule by which a pod may or may not use an image, what will happen
// in its calls, and what would change the verdict. Commands in them are in backquotes. The answer has the evidence as separate
// values.
package prose
