package globals_test

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"

	"github.com/pullgate/pullgate/checks/globals"
)

func TestAnalyzerFindsVariablesThatChange(t *testing.T) {
	analysistest.Run(t, analysistest.TestData(), globals.Analyzer(), "a")
}
