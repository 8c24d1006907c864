-- What makes the store of version 3 one of version 4, with a lease that lasts and a model.
DROP TABLE treecv_claims;
CREATE TABLE treecv_leases (
	"key" BLOB NOT NULL,
	owner VARCHAR(32) NOT NULL,
	expires DOUBLE NOT NULL,
	PRIMARY KEY ("key")
);
INSERT INTO "treecv_leases" VALUES(X'AB','5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f',4000000000.0);
INSERT INTO "treecv_models" VALUES(3,X'6E6E6E6E6E6E6E6E6E6E6E6E6E6E6E6E',NULL,NULL,33,0.5,'2026-11-25 20:46:45.023941',X'5443563205000000000000004ED4BD70ABC437B7A7D6D99DD273E5BF0001020304');
UPDATE treecv_schema SET version = 4;
