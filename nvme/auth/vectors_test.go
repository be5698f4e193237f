package auth

// responseVectors are R1 and R2, the first 12 bytes of each.
var responseVectors = []struct {
	hash, transformation Hash
	session              bool
	want                 string
}{
	{SHA256, NoHash, false, "22143016a37334f027e492fe " +
		"018e1a83208a2970e946ad57"},
	{SHA256, NoHash, true, "e7444cdccccbd9436f2a5006 " +
		"3646c3eff93240e4137241ee"},
	{SHA256, SHA256, false, "1c3027ed3918e1d3b82034f4 " +
		"199f824f8682dd0d7027b1e8"},
	{SHA256, SHA256, true, "6e88782c607f5d7419ae8599 " +
		"f1c2c29cbb41b114828cf87c"},
	{SHA256, SHA512, false, "458215e557d4652172611541 " +
		"e97b80f72fb2c47566fd5915"},
	{SHA256, SHA512, true, "7dcd7d1bd331a8cdf2bf08ab " +
		"17b8c8d0ca8a9aab5f4896ff"},
	{SHA384, NoHash, false, "7dc41ea319cb8c3221531f60 " +
		"3e3ab5fedaca409cd0c73a3b"},
	{SHA384, NoHash, true, "469b5a7287db43fec694f176 " +
		"7f5a4ddadb037546ef9c1fda"},
	{SHA384, SHA384, false, "89f8a27a4b817902b299b01d " +
		"0ddf3c1dbcac11c5e60868e0"},
	{SHA384, SHA384, true, "4181445dc4fc7c5d7e5e139f " +
		"ae7dd8d0a985737a3c50e425"},
	{SHA512, NoHash, false, "12b014b38e496248d43ef535 " +
		"a874085cf0791d7b32322985"},
	{SHA512, NoHash, true, "1b05a684d4e88dbede5958a8 " +
		"0c6df9d4032c2f39d927b6d0"},
	{SHA512, SHA512, false, "2f160725c0b75b32ae2e36d3 " +
		"a824440d56adb81fb4724333"},
	{SHA512, SHA512, true, "b654967af83b570e61249a3e " +
		"86b7b025c5f2e54fb1a295b8"},
}
