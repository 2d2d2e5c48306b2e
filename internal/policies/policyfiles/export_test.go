package policyfiles

// The files of both dialects as they are written.
type (
	KyvernoDocument = kyvernoDocument
	CIPDocument     = cipDocument
)
